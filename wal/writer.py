"""Appends frames to the log, segment after segment, and knows what of it is durable.

Invariants:

- ``synced <= position``; ``synced`` rises only after a sync that began when it was all written.
- Everything below a segment's first position is durable before that segment exists under its
  name, and the segment is durable with its header and STATE frame before it gets that name.
- Nothing is appended to a segment before the seal of the one before it is durable.
- An append that fails leaves ``position`` as it was; the next one overwrites what it left behind.
  One that is cut short by a signal stays in doubt until ``make_whole`` has done so: a frame
  that nobody counts with would come back if the process dies before the next one.
- A change of segments that was cut short, by an error or by Ctrl-C at whatever line, is carried on
  by the next one: each of its steps may be done twice, and nothing is appended meanwhile.
- After a failed sync nothing is ever written or synced again: ``failure`` is set for good.

Used by one thread at a time for appends; ``sync`` may run beside appends, but only one at a time,
and never beside ``rotate``.

Left out: who may append when, and groups (``engine.commit``); what the end means (``tail``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from crc32c import crc32c

from ..affinity.errors import CorruptLogError
from .format import (
    FRAME_MAGIC,
    HEADER_SIZE,
    SEAL_MAGIC,
    SegmentHeader,
    encode_frame,
    log_seed,
    pack_covered,
    pack_frame_header,
    segment_name,
)
from .ports import Directory, LogFile
from .records import SealRecord, encode_seal
from .segments import open_segment, probe, seal_at

NEXT_NAME = "next.tmp"

SEAL_ROOM = 64
"""Bytes that are kept free at the end of a segment for its seal, which is never longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSizes:
    """How much of a segment is written at a time, in bytes."""

    piece: int = 64 << 10
    """The most that one write takes; no segment is shorter than two of them."""
    ahead: int = 128 << 10
    """Zeros ahead of the frames, so that syncs need not make the file grow each time."""
    ahead_mapped: int = 2 << 20
    """A mapped file is mapped anew each time it has grown, so it grows by more."""


WRITE_SIZES = WriteSizes()
"""The sizes outside of tests."""


class LogFailedError(Exception):
    """The log cannot be written any more since a sync failed; ``__cause__`` is that failure."""


class SyncFailedError(OSError):
    """A sync failed while a segment was begun: it may or may not be there after a power cut."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A segment that is durable under its name, and the one before it, which lacks its seal.

    ``position`` is the end of the new one, behind its STATE frame.
    """

    header: SegmentHeader
    file: LogFile
    position: int
    old_header: SegmentHeader
    old_file: LogFile


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
        sizes: WriteSizes = WRITE_SIZES,
    ) -> None:
        self._directory = directory
        self._header = header
        self._file = file
        self._base = header.first_position - HEADER_SIZE
        # How far frames may go before the file must grow, the room for the seal left out; 0 while
        # the change to another segment is under way, however that was cut short.
        self._filled = max(file.size() - SEAL_ROOM, position - self._base)
        self._limit = max(segment_size, 2 * sizes.piece) - SEAL_ROOM
        self._piece = sizes.piece
        self._ahead = sizes.ahead_mapped if mapped else sizes.ahead
        self._zeros = bytes(sizes.piece)
        self._state = state
        self._spare = spare
        self._sealed = sealed
        self._mapped = mapped
        self._bytes = file.mapping
        self._fresh = -1
        self._begun: _Begun | None = None
        self.seed = log_seed(header.log_id)
        self.position = position
        self.synced = synced
        self.announced = synced
        self.failure: OSError | None = None
        self._doubt: bytes | None = None
        """A frame that is being written at ``position``: nobody knows how much of it is there."""

    @property
    def segment(self) -> SegmentHeader:
        """The header of the segment that is being written."""
        return self._header

    def append(self, payload: bytes) -> bool:
        """Write one frame at the end; False, and nothing done, if it needs a new segment.

        A segment that holds nothing but its STATE frame takes any length.  Raises ``OSError``
        if nothing was appended, ``LogFailedError`` after a failed sync.
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
            if not self._filled or (end > self._limit and position != self._fresh):
                return False
            self._fill(end)
        after = position + len(frame)
        self._doubt = frame
        try:
            if self._bytes is not None:
                self._bytes[offset:end] = frame
            else:
                self._write(offset, frame)
        except OSError as error:
            if error.errno is not None:  # else a signal's handler raised it, not the system
                self._doubt = None
            raise
        # In one line: no signal comes between these.
        self.position, self.announced, self._doubt = after, synced, None
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether a signal cut an append short, and nobody has made it whole yet."""
        return self._doubt is not None

    def make_whole(self) -> None:
        """Write the frame of an append whole that a signal cut short; done twice it does the same.

        Raises ``OSError`` if that fails: nobody knows how much of it is there.
        """
        frame = self._doubt
        if frame is not None:
            try:
                self._write(self.position - self._base, frame)
            except OSError as error:
                if error.errno is not None:
                    self.failure = error
                raise
            self.position, self._doubt = self.position + len(frame), None

    def _write(self, offset: int, frame: bytes) -> None:
        piece = self._piece
        for start in range(0, len(frame), piece):
            self._file.write(offset + start, frame[start : start + piece])

    def _fill(self, end: int) -> None:
        """Write zeros ahead of ``end``, so that syncs need not make the file grow each time."""
        target = max(min(end + self._ahead, self._limit), end)
        self._bytes = None  # an interrupt below must not leave a mapping here that is gone
        try:
            while self._filled < target:
                size = min(self._piece - SEAL_ROOM, target - self._filled)
                self._file.write(self._filled, self._zeros[: size + SEAL_ROOM])
                self._filled += size
        finally:
            # A file that has grown has another mapping, also if it then grew no further.
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
                if error.errno is not None:  # else a signal's handler raised it, not the system
                    self.failure = error
                raise
            self.synced = position
        return position

    def rotate(self) -> None:
        """Seal this segment and begin the next one; raises as ``append`` and ``sync`` do.

        Called again after an error or an interrupt it goes on where the one before stopped.
        After an ``OSError`` from anything but a sync the old segment goes on being used, unless
        the new one may be there.
        """
        filled, self._filled = self._filled, 0
        try:
            self.sync()
            if self._begun is None:
                self._begun = self._begin()
        except OSError as error:
            if isinstance(error, SyncFailedError):
                # The new segment may be there for the next recovery, which then takes nothing
                # more from the old one.
                self.failure = error
            elif error.errno is not None:  # else a signal's handler raised it: as for Ctrl-C
                self._filled = filled
            raise
        self._change_to(self._begun)

    def _begin(self) -> _Begun:
        header = replace(self._header, number=self._header.number + 1, first_position=self.position)
        file, position = create_segment(
            self._directory, header, self._state(), spare=self._spare(), mapped=self._mapped
        )
        return _Begun(header, file, position, self._header, self._file)

    def _change_to(self, begun: _Begun) -> None:
        """Seal the old segment, and let appends go into the new one."""
        header, file, position = begun.header, begun.file, begun.position
        self._file, self._header = file, header
        self._base = header.first_position - HEADER_SIZE
        self._fresh = position
        self.position = self.synced = self.announced = position
        try:
            write_seal(begun.old_file, begun.old_header, header, position)
        except SyncFailedError as error:
            self.failure = error
            raise
        self._sealed(begun.old_header, header.first_position)
        self._bytes = file.mapping
        filled = max(file.size() - SEAL_ROOM, position - self._base)
        self._begun = None
        self._filled = filled
        with contextlib.suppress(OSError):
            begun.old_file.close()

    def close(self) -> None:
        """Close the file; nothing is synced here."""
        self._file.close()
        if self._begun is not None:
            self._begun.file.close()
            self._begun.old_file.close()


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
        return file, header.first_position + len(frame)
    except BaseException:
        file.close()
        raise


def write_seal(file: LogFile, header: SegmentHeader, following: SegmentHeader, end: int) -> None:
    """Write behind the last frame of a segment, durably, which one goes on from there.

    ``end`` is the position behind the STATE frame of the following one, which is durable.  Raises
    ``OSError``, for a sync ``SyncFailedError``.
    """
    first = following.first_position
    seal = SealRecord(number=following.number, first_position=first, end=end)
    frame = encode_frame(log_seed(header.log_id), first, first, encode_seal(seal), SEAL_MAGIC)
    file.write(HEADER_SIZE + first - header.first_position, frame)
    _sync(file)


def seal_before(directory: Directory, last: SegmentHeader) -> None:
    """Seal the segment before the last one, if a crash has come before that.

    Else the absence of the last one would look one day as if it had never been there.  Raises
    ``OSError``.
    """
    try:
        before = open_segment(directory, last.number - 1)
    except (FileNotFoundError, CorruptLogError):
        return  # it was dropped, or it is for its readers to tell what has become of it
    place = before.offset_of(last.first_position)
    try:
        lacks = before.file.size() >= place > 0 and not seal_at(before, last.first_position)
    finally:
        before.file.close()
    if lacks and before.header is not None:
        segment = open_segment(directory, last.number)
        state = probe(segment, last.first_position).frame
        segment.file.close()
        file = directory.open_write(segment_name(before.number))
        try:
            end = last.first_position if state is None else state.end
            write_seal(file, before.header, last, end)
        finally:
            file.close()


def _sync(what: LogFile | Directory) -> None:
    try:
        what.sync()
    except OSError as error:
        if error.errno is None:
            raise  # by the handler of a signal
        raise SyncFailedError(*error.args) from error
