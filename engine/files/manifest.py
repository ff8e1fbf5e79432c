"""The manifest: who this store is.  One small file, replaced as a whole.

A line of JSON, then its CRC-32C as eight hex digits.  Written beside, synced, renamed, and the
directory synced: there is always one whole manifest, the old or the new.

Left out: everything that changes with each commit; that is in the log and in LMDB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crc32c import crc32c

from ...affinity.errors import CorruptDataError, DiskError, DiskFullError
from ...affinity.partitions import PARTITIONS_MAX, Space, check_spaces
from ...wal.format import KNOWN_REQUIRED, unknown_features
from ...wal.ports import Directory, ReadableDirectory
from ..system.disk_errors import translated_disk
from ..system.layout import MANIFEST_NAME, NEW_MANIFEST_NAME

STORE_FORMAT = 1
_SIZE_MAX = 1 << 20
_ID_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Identity of a store; ids are hex.

    ``logs`` lists (log id, first position) of logs that this one continues, oldest first,
    its own entry last.  ``clean_end`` is the end of the log at a clean close, or None while the
    store is open or after a crash.  ``copied`` marks a hot copy that nobody has opened for
    writing yet, ``rebuild`` a data file that a failed sync made doubtful.  A cluster's member has
    its id, its boot, its last and its fresh nonce, the cluster, and up to where its configuration
    log is known to be durable.
    """

    store_id: str
    history_id: str
    log_id: str
    logs: list[tuple[str, int]]
    partitions: int
    clean_end: int | None
    kv_engine: str
    spaces: list[Space]
    copied: bool = False
    rebuild: bool = False
    member: str | None = None
    boot: int = 0
    nonces: list[str] | None = None
    cluster: str | None = None
    config_durable: int = 0
    format: int = STORE_FORMAT
    compatible: int = 0
    read_only: int = 0
    required: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of later versions: kept, and written back."""

    @property
    def durable(self) -> int:
        """A position that the log has reached durably: a clean end, else some of its first frame.

        That one was durable before the first manifest was written.
        """
        return self.clean_end or 1

    @property
    def log_ids(self) -> list[tuple[bytes, int]]:
        """``logs`` with the ids as bytes, as readers of the log want them."""
        return [(bytes.fromhex(log_id), first) for log_id, first in self.logs]


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the file."""
    fields = asdict(manifest)
    line = json.dumps({**fields.pop("unknown"), **fields}, sort_keys=True).encode()
    return line + b"\n%08x\n" % crc32c(line)


def decode(data: bytes) -> Manifest:
    """Return the manifest in the bytes of a file.

    Raises ``CorruptDataError`` for damage, ``FormatVersionError`` for a format or a feature that
    this version must refuse.
    """
    line, _, check = data.partition(b"\n")
    if check.strip() != b"%08x" % crc32c(line):
        raise CorruptDataError("the manifest does not match its checksum")
    try:
        fields = json.loads(line)
        found, required = int(fields["format"]), int(fields["required"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"the manifest does not decode: {error}") from None
    if found != STORE_FORMAT or required & ~KNOWN_REQUIRED:
        raise unknown_features("the store", found, required, STORE_FORMAT)
    names = Manifest.__dataclass_fields__.keys() - {"unknown"}
    known = {name: fields.pop(name) for name in names if name in fields}
    try:
        manifest = Manifest(**known, unknown=fields)
        logs = [(str(log), int(first)) for log, first in manifest.logs]
        spaces = [Space(int(a), int(b), int(c)) for a, b, c in manifest.spaces]
        _check_types(manifest)
        check_spaces(spaces, manifest.partitions)
    except (TypeError, ValueError) as error:
        raise CorruptDataError(f"the manifest lacks something: {error}") from None
    return replace(manifest, logs=logs, spaces=spaces)


def _check_types(manifest: Manifest) -> None:
    """Raise ``ValueError`` or ``TypeError`` for fields that somebody wrote by hand, and wrongly."""
    ids = (manifest.store_id, manifest.history_id, manifest.log_id)
    for text in (*ids, *(log for log, _ in manifest.logs)):
        if len(bytes.fromhex(text)) != _ID_SIZE:
            raise ValueError(f"{text!r} is not an id")
    masks = (manifest.compatible, manifest.read_only, manifest.required)
    for number in (manifest.partitions, manifest.clean_end or 0, *masks):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a number")
    if not manifest.logs or not 1 <= manifest.partitions <= PARTITIONS_MAX:
        raise ValueError(f"{manifest.partitions} partitions and {len(manifest.logs)} logs")
    for truth in (manifest.copied, manifest.rebuild):
        if type(truth) is not bool:
            raise ValueError(f"{truth!r} is neither true nor false")


def read(directory: ReadableDirectory) -> Manifest:
    """Return the manifest of a store's directory; raises as ``decode`` does, and ``OSError``."""
    file = directory.open_read(MANIFEST_NAME)
    try:
        return decode(file.read(0, _SIZE_MAX))
    finally:
        file.close()


def write(directory: Directory, manifest: Manifest) -> None:
    """Replace the manifest, durably."""
    if NEW_MANIFEST_NAME in directory.names():
        directory.unlink(NEW_MANIFEST_NAME)
    file = directory.create(NEW_MANIFEST_NAME)
    try:
        file.write(0, encode(manifest))
        file.sync()
    finally:
        file.close()
    directory.rename(NEW_MANIFEST_NAME, MANIFEST_NAME)
    directory.sync()


class ManifestKeeper:
    """The manifest of a store that this process has open for writing, and each change of it."""

    def __init__(self, directory: Directory, manifest: Manifest) -> None:
        self.manifest = manifest
        self._directory = directory

    def put(self, manifest: Manifest) -> None:
        """Replace it, durably; ``DiskError`` or ``DiskFullError`` if that fails.

        What this process does next goes by the new one even then.
        """
        self.manifest = manifest
        with translated_disk("writing the manifest"):
            write(self._directory, manifest)

    def doubt(self) -> None:
        """Note, if the disk still takes it, that the next open has to copy the data file."""
        with suppress(DiskError, DiskFullError):
            self.put(replace(self.manifest, rebuild=True))

    def end_cleanly(self, position: int) -> None:
        """Note that the log ends at a position, all of it durable."""
        self.put(replace(self.manifest, clean_end=position))

    def begin(self, *, rebuild: bool) -> None:
        """Take the mark of a clean close away, before anything is appended to the log."""
        if self.manifest.clean_end is not None or self.manifest.rebuild != rebuild:
            self.put(replace(self.manifest, clean_end=None, rebuild=rebuild))

    def become_a_store(self, log_id: str, history_id: str, end: int) -> None:
        """Give a hot copy a log and a history of its own from the end of its log on.

        The manifest comes first: the segment of the new log, which it promises, is begun behind
        it, or by the next open if this one crashes in between.
        """
        logs = [*self.manifest.logs, (log_id, end)]
        self.put(
            replace(
                self.manifest,
                log_id=log_id,
                history_id=history_id,
                logs=logs,
                clean_end=end,
                copied=False,
            )
        )
