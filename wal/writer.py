"""Appends frames to the log, segment after segment, and knows what of it is durable.

Invariants:

- ``synced <= position``; ``synced`` rises only after a sync that began when it was all written.
- Everything below a segment's first position is durable before that segment exists under its
  name, and the segment is durable with its header and STATE frame before it gets that name.
- An append that fails leaves ``position`` as it was; the next one overwrites what it left behind.
- After a failed sync nothing is ever written or synced again: ``failure`` is set for good.

Used by one thread at a time for appends; ``sync`` may run beside appends, but only one at a time,
and never beside ``rotate``.

Left out: who may append when, and groups (``engine.commit``); what the end means (``tail``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from crc32c import crc32c

from .format import (
    FRAME_MAGIC,
    HEADER_SIZE,
    SegmentHeader,
    encode_frame,
    log_seed,
    pack_covered,
    pack_frame_header,
    segment_name,
)
from .ports import Directory, LogFile

FILL_AHEAD = 128 << 10
FILL_AHEAD_MAPPED = 2 << 20
"""A mapped file is mapped anew each time it has grown, so it grows by more."""
PIECE = 64 << 10
NEXT_NAME = "next.tmp"

_ZEROS = bytes(PIECE)


class LogFailedError(Exception):
    """The log cannot be written any more since a sync failed; ``__cause__`` is that failure."""


class SyncFailedError(OSError):
    """A sync failed while a segment was begun: it may or may not be there after a power cut."""


class LogWriter:
    """The end of a log, open for appending.

    ``state`` returns the payload of the STATE frame for a new segment; ``spare`` the name of an
    old segment that may be overwritten, or None; ``sealed`` hears of each segment that is full.
    """

    def __init__(
        self,
        directory: Directory,
        header: SegmentHeader,
        file: LogFile,
        *,
        position: int,
        synced: int,
        segment_size: int,
        state: Callable[[], bytes],
        spare: Callable[[], str | None],
        sealed: Callable[[SegmentHeader, int], None],
        mapped: bool = False,
    ) -> None:
        self._directory = directory
        self._header = header
        self._file = file
        self._base = header.first_position - HEADER_SIZE
        self._filled = file.size()
        self._limit = max(segment_size, 2 * PIECE)
        self._state = state
        self._spare = spare
        self._sealed = sealed
        self._mapped = mapped
        self._bytes = file.mapping
        self._fresh = -1
        self.seed = log_seed(header.log_id)
        self.position = position
        self.synced = synced
        self.announced = synced
        self.failure: OSError | None = None

    @property
    def segment(self) -> SegmentHeader:
        """The header of the segment that is being written."""
        return self._header

    def append(self, payload: bytes) -> bool:
        """Write one frame at the end; False, and nothing done, where it needs a new segment.

        A segment that holds nothing but its STATE frame takes any length.  Raises ``OSError``
        where nothing was appended, ``LogFailedError`` after a failed sync.
        """
        if self.failure is not None:
            raise LogFailedError from self.failure
        position = self.position
        synced = self.synced
        length = len(payload)
        # `encode_frame`, written out: this is the inner loop of every commit.
        crc = crc32c(payload, crc32c(pack_covered(position, length, synced), self.seed))
        frame = pack_frame_header(FRAME_MAGIC, length, crc, synced) + payload
        offset = position - self._base
        end = offset + len(frame)
        if end > self._filled:
            if end > self._limit and position != self._fresh:
                return False
            self._fill(end)
        if self._bytes is not None:
            self._bytes[offset:end] = frame
        elif len(frame) <= PIECE:
            self._file.write(offset, frame)
        else:
            for start in range(0, len(frame), PIECE):
                self._file.write(offset + start, frame[start : start + PIECE])
        self.position = position + len(frame)
        self.announced = synced
        return True

    def _fill(self, end: int) -> None:
        """Write zeros ahead of ``end``, so that syncs need not make the file grow each time."""
        ahead = FILL_AHEAD_MAPPED if self._mapped else FILL_AHEAD
        target = max(min(end + ahead, self._limit), end)
        self._bytes = None  # an interrupt below must not leave a mapping here that is gone
        try:
            while self._filled < target:
                size = min(PIECE, target - self._filled)
                self._file.write(self._filled, _ZEROS if size == PIECE else _ZEROS[:size])
                self._filled += size
        finally:
            # A file that has grown has another mapping, also where it then grew no further.
            self._bytes = self._file.mapping

    def sync(self) -> int:
        """Make everything appended so far durable; return up to which position that is.

        Raises ``OSError`` the first time it fails and ``LogFailedError`` ever after.
        """
        if self.failure is not None:
            raise LogFailedError from self.failure
        position = self.position
        if position > self.synced:
            try:
                self._file.sync()
            except OSError as error:
                self.failure = error
                raise
            self.synced = position
        return position

    def rotate(self) -> None:
        """Seal this segment and begin the next one; raises as ``append`` and ``sync`` do.

        After an ``OSError`` from anything but a sync the old segment goes on being used.
        """
        self.sync()
        header = SegmentHeader(
            log_id=self._header.log_id,
            store_id=self._header.store_id,
            history_id=self._header.history_id,
            number=self._header.number + 1,
            first_position=self.position,
        )
        old_file, old_header, end = self._file, self._header, self.position
        try:
            file, position = create_segment(
                self._directory, header, self._state(), spare=self._spare(), mapped=self._mapped
            )
            filled, mapping = file.size(), file.mapping
        except SyncFailedError as error:
            # The new segment may be there for the next recovery, which then takes nothing more
            # from the old one.
            self.failure = error
            raise
        except OSError:
            raise
        except BaseException as error:
            # So it may behind an interrupt.
            self.failure = OSError(f"interrupted while a segment was begun: {error!r}")
            raise
        self._file, self._header, self._filled, self._bytes = file, header, filled, mapping
        self._base = header.first_position - HEADER_SIZE
        self._fresh = position
        self.position = self.synced = self.announced = position
        with contextlib.suppress(OSError):
            old_file.close()
        self._sealed(old_header, end)

    def close(self) -> None:
        """Close the file; nothing is synced here."""
        self._file.close()


def create_segment(
    directory: Directory,
    header: SegmentHeader,
    state: bytes,
    *,
    spare: str | None = None,
    mapped: bool = False,
) -> tuple[LogFile, int]:
    """Make a segment with its header and STATE frame, durable under its name.

    ``spare`` names an old segment whose space is used again.  Returns the open file and the
    position behind the STATE frame.  Raises ``OSError``, for a sync ``SyncFailedError``; a crash
    leaves at most ``NEXT_NAME``.
    """
    seed = log_seed(header.log_id)
    frame = encode_frame(seed, header.first_position, header.first_position, state)
    if NEXT_NAME in directory.names():
        directory.unlink(NEXT_NAME)
    if spare is not None:
        directory.rename(spare, NEXT_NAME)
        _sync(directory)  # else a power cut could leave the new header under the old name
        file = directory.open_write(NEXT_NAME, mapped=mapped)
    else:
        file = directory.create(NEXT_NAME, mapped=mapped)
    try:
        file.write(0, header.to_bytes() + frame)
        _sync(file)
        directory.rename(NEXT_NAME, segment_name(header.number))
        _sync(directory)
    except OSError:
        file.close()
        raise
    return file, header.first_position + len(frame)


def _sync(what: LogFile | Directory) -> None:
    try:
        what.sync()
    except OSError as error:
        raise SyncFailedError(*error.args) from error
