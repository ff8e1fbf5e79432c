"""The bytes of a log: segment header and frame header.  The one place that knows the offsets.

``docs/wal-format.md`` shows the same as tables with a worked example.

Invariants:

- A *position* is a byte offset in the endless log: segment headers do not count.  A frame at
  position ``p`` lies at file offset ``HEADER_SIZE + p - first_position`` of its segment.
- The CRC-32C of a frame covers the log id, the frame's position, its length, ``synced`` and the
  payload, so neither a frame of another log nor a stale one in a recycled file ever passes.
- Integers are little endian.

Left out: what is inside a payload (``records``), and what the end of a log means (``tail``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ..affinity.errors import CorruptLogError, FormatVersionError

FORMAT_VERSION = 1
HEADER_SIZE = 128
FRAME_OVERHEAD = 20
FRAME_MAGIC = b"TLF\x01"
SEAL_MAGIC = b"TLS\x01"
"""Begins what stands behind the last frame of a segment that another one follows."""
PAYLOAD_MAX = 1 << 30
"""No frame is ever longer; a larger length is damage, and nothing is allocated for it."""

SEGMENT_MAGIC = b"TIDELOG\x00"

# Features are bits of three kinds, in the manifest and in the header of each segment. Code that
# does not know a bit may read and write the store all the same, may read only, or must refuse it.
# Nobody takes away a bit that is there.
CLUSTER = 1
"""Required: a cluster owns the store, and nobody but its member may open it."""
PREVIEW = 2
"""Required: it may have records of the cluster whose bodies can change until they are released."""
KNOWN_READ_ONLY = 0
KNOWN_REQUIRED = CLUSTER | PREVIEW

_SEGMENT = struct.Struct("<8sIIII16s16s16sQQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<4sIIQ")
_COVERED = struct.Struct("<QIQ")

pack_frame_header = _FRAME.pack
unpack_frame_header = _FRAME.unpack_from
pack_covered = _COVERED.pack


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The first 128 bytes of a segment, which make it readable alone."""

    log_id: bytes
    store_id: bytes
    history_id: bytes
    number: int
    first_position: int
    compatible: int = 0
    read_only: int = 0
    required: int = 0

    def to_bytes(self, magic: bytes = SEGMENT_MAGIC) -> bytes:
        """Return the 128 bytes of the header, with the magic of the kind of file."""
        body = _SEGMENT.pack(
            magic,
            FORMAT_VERSION,
            self.compatible,
            self.read_only,
            self.required,
            self.log_id,
            self.store_id,
            self.history_id,
            self.number,
            self.first_position,
        ).ljust(HEADER_SIZE - _CRC.size, b"\0")
        return body + _CRC.pack(crc32c(body))


def parse_segment_header(data: bytes, segment: int) -> SegmentHeader:
    """Return the header in the first bytes of a segment.

    ``segment`` is the number in the file's name, for errors.  Raises ``CorruptLogError`` for
    damaged bytes, ``FormatVersionError`` for a version or feature that must be refused.
    """
    return parse_header(data, SEGMENT_MAGIC, f"segment {segment}", segment)


def parse_header(data: bytes, magic: bytes, what: str, segment: int = 0) -> SegmentHeader:
    """Return the header of a file that begins with ``magic``; raises as for a segment.

    ``what`` names the file in errors; ``segment`` is 0 for one that is not a segment.
    """
    if len(data) < HEADER_SIZE or not data.startswith(magic):
        raise CorruptLogError(
            f"{what} does not begin with its header: expected {HEADER_SIZE} bytes that begin with "
            f"{magic!r}, found {len(data[:HEADER_SIZE])} that begin with {data[: len(magic)]!r}",
            kind="damaged",
            segment=segment,
            offset=0,
        )
    (expected,) = _CRC.unpack_from(data, HEADER_SIZE - _CRC.size)
    found = crc32c(data[: HEADER_SIZE - _CRC.size])
    if found != expected:
        raise CorruptLogError(
            f"the header of {what} is damaged (CRC {expected:08x} stored, {found:08x} computed)",
            kind="damaged",
            segment=segment,
            offset=0,
            expected=expected,
            found=found,
        )
    (_, version, compatible, read_only, required, log_id, store_id, history_id, number, first) = (
        _SEGMENT.unpack_from(data)
    )
    if version != FORMAT_VERSION or required & ~KNOWN_REQUIRED:
        raise unknown_features(what, version, required, FORMAT_VERSION)
    return SegmentHeader(
        log_id=log_id,
        store_id=store_id,
        history_id=history_id,
        number=number,
        first_position=first,
        compatible=compatible,
        read_only=read_only,
        required=required,
    )


def unknown_features(what: str, version: int, required: int, supported: int) -> FormatVersionError:
    """Return the error for a segment or a store that this version must refuse."""
    return FormatVersionError(
        f"{what} has format {version} with required features {required:#x}; "
        f"this version of tidelog knows format {supported} and {KNOWN_REQUIRED:#x}",
        found=version,
        supported=supported,
    )


def check_writable(what: str, version: int, read_only: int) -> None:
    """Raise ``FormatVersionError`` for features with which this version may read, but not write."""
    unknown = read_only & ~KNOWN_READ_ONLY
    if unknown:
        raise FormatVersionError(
            f"{what} has features {unknown:#x}, which this version of tidelog does not know: "
            "it may read the store, but not write it",
            found=version,
            supported=FORMAT_VERSION,
            hint="Open it with `read_only=True`, or use the version of tidelog that wrote it.",
        )


def log_seed(log_id: bytes) -> int:
    """Return the CRC state with which every frame of the log begins."""
    return crc32c(log_id)


def encode_frame(
    seed: int, position: int, synced: int, payload: bytes, magic: bytes = FRAME_MAGIC
) -> bytes:
    """Return the frame that holds ``payload`` at ``position``; ``synced`` is known durable."""
    length = len(payload)
    crc = crc32c(payload, crc32c(pack_covered(position, length, synced), seed))
    return pack_frame_header(magic, length, crc, synced) + payload


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The first 20 bytes of a frame, not checked yet."""

    length: int
    crc: int
    synced: int

    def crc_found(self, seed: int, position: int, payload: bytes) -> int:
        """Return the CRC that this header should have for ``payload`` at ``position``."""
        return crc32c(payload, crc32c(pack_covered(position, self.length, self.synced), seed))


class Frame(NamedTuple):
    """A whole frame whose CRC was right, and where it lies."""

    position: int
    synced: int
    payload: bytes
    segment: int
    offset: int

    @property
    def end(self) -> int:
        """The position behind the frame."""
        return self.position + FRAME_OVERHEAD + len(self.payload)


def parse_frame_header(
    data: bytes, offset: int = 0, magic: bytes = FRAME_MAGIC
) -> FrameHeader | None:
    """Return the frame header at ``offset`` of ``data``, or None if there can be none.

    None means: too few bytes, no magic, a length of 0 or beyond ``PAYLOAD_MAX``.
    """
    if len(data) - offset < FRAME_OVERHEAD:
        return None
    found, length, crc, synced = _FRAME.unpack_from(data, offset)
    if found != magic or not 0 < length <= PAYLOAD_MAX:
        return None
    return FrameHeader(length, crc, synced)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:016d}.log"


def segment_number(name: str) -> int | None:
    """Return the number in the name of a segment file, or None for any other name."""
    stem = name.removesuffix(".log")
    return (
        int(stem)
        if stem != name and len(stem) == 16 and stem.isascii() and stem.isdigit()
        else None
    )
