"""Whether this version may open a store, by the features in its manifest and its newest segment.

Every open asks before it looks at anything else.  A segment has the features of the one before it,
so the newest one has them all.

Left out: features that nobody may even read without knowing them; decoding refuses those.
"""

from __future__ import annotations

from ...affinity.errors import CorruptLogError, UsageError
from ...wal.format import CLUSTER, SegmentHeader, check_writable
from ...wal.ports import ReadableDirectory
from ...wal.segments import open_segment, segment_numbers
from .manifest import Manifest


def check_features(
    path: str,
    manifest: Manifest,
    wal: ReadableDirectory,
    *,
    write: bool,
    as_member: bool = False,
) -> None:
    """Raise if a store at ``path`` must not be opened for reading, or for writing.

    ``UsageError`` for the store of a cluster's member, which alone may have several spaces, unless
    it is opened ``as_member``, and for any other store then; ``FormatVersionError`` for features
    with which this version may read only, if it is to write, or that it must refuse.
    """
    header = newest_header(wal)
    if not as_member:
        check_own(path, manifest, header)
    elif manifest.cluster is None or manifest.member is None:
        raise UsageError(
            f"{path} is a store of its own, no cluster's member",
            hint="`tidelog server adopt` makes it the first member of a cluster; a member's "
            "directory in another place is made by `tidelog server init`.",
        )
    if write:
        check_writable(path, manifest.format, manifest.read_only)
        if header is not None:
            check_writable(f"segment {header.number} of {path}", manifest.format, header.read_only)


def check_own(path: str, manifest: Manifest | None, header: SegmentHeader | None) -> None:
    """Raise ``UsageError`` for a store, or a folder of segments, that belongs to a cluster.

    A store with several spaces does, whatever its features are: here all keys lie in one.
    """
    cluster = manifest.cluster if manifest is not None else None
    required = (manifest.required if manifest else 0) | (header.required if header else 0)
    hint = (
        "Only the cluster's member opens it; `tidelog db info` tells of it, `tidelog db verify` "
        "checks it, and `tidelog wal` looks into its log."
    )
    if cluster is not None or required & CLUSTER:
        raise UsageError(
            f"{path} belongs to a cluster" + (f": {cluster}" if cluster else ""), hint=hint
        )
    if manifest is not None and len(manifest.spaces) > 1:
        raise UsageError(
            f"{path} has {len(manifest.spaces)} spaces of partitions, as only a cluster's has",
            hint=hint,
        )


def newest_header(wal: ReadableDirectory) -> SegmentHeader | None:
    """Return the header of the newest segment that has a valid one."""
    for number in reversed(segment_numbers(wal)):
        try:
            segment = open_segment(wal, number)
        except (CorruptLogError, FileNotFoundError):  # damaged, or dropped by a writer meanwhile
            continue
        segment.file.close()
        if segment.header is not None:
            return segment.header
    return None
