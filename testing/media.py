"""What a simulated disk holds: files and folders, and what of them a power cut may leave.

Owns the difference between what programs see (``cached``) and what is on the platter
(``durable``), and the four ways in which a power cut settles it.

Invariants:

- A sync makes durable exactly the changes that were issued before it, sizes included.
- Names become durable apart from content: a synced file may lose its name, a durable name may
  lead to a file that is empty.
- An outcome is a function of the state and the random generator that is handed in.

``kept``       everything that was issued landed
``lost``       nothing that was not synced landed
``torn``       each unsynced write landed up to some byte or sector; names up to some point
``reordered``  any subset of the sectors, pages or writes landed; names in any order that keeps
               what depends on each other

Left out: numbers, faults, handles and paths (``testing.disk``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SECTOR_BYTES = 512
PAGE_BYTES = 4096
CRASH_OUTCOMES = ("kept", "lost", "torn", "reordered")


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes that were written at an offset."""

    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Change ``content`` as the write does; a hole before it reads as zeros."""
        missing = self.offset - len(content)
        if missing > 0:
            content.extend(bytes(missing))
        content[self.offset : self.offset + len(self.data)] = self.data

    def head(self, length: int) -> FileWrite:
        """Return the first ``length`` bytes of the write."""
        return FileWrite(self.offset, self.data[:length])

    def pieces(self, unit: int) -> Iterator[FileWrite]:
        """Yield the write in pieces that end where a unit of the disk ends."""
        start = 0
        while start < len(self.data):
            position = self.offset + start
            end = min(len(self.data), start + unit - position % unit)
            yield FileWrite(position, self.data[start:end])
            start = end


@dataclass(frozen=True, slots=True)
class Resize:
    """A file that was cut, or extended, to a size."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Change ``content`` as the resize does."""
        if self.size < len(content):
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))


Change = FileWrite | Resize


class Inode:
    """A file: its content on the platter, in the cache, and the unsynced changes between."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.cached = bytearray(content)
        self.unsynced: list[Change] = []
        self.version = 0

    def change(self, change: Change) -> None:
        """Make a change that programs see at once and a power cut may undo."""
        change.apply(self.cached)
        self.unsynced.append(change)
        self.version += 1

    def sync(self) -> None:
        """Make every change so far durable."""
        for change in self.unsynced:
            change.apply(self.durable)
        self.unsynced.clear()

    def replace(self, content: bytes) -> None:
        """Replace the whole content, atomically and durably."""
        self.durable[:] = content
        self.cached[:] = content
        self.unsynced.clear()
        self.version += 1

    def sync_partly(self, rng: random.Random) -> None:
        """Make some of the changes durable, as a sync does that is cut short.

        Of each sector or page the changes up to some point land: what is newer on the platter is
        never overwritten by what is older.
        """
        unit = _unit(rng)
        late: set[int] = set()
        rest: list[Change] = []
        pieces = list(_split(self.unsynced, unit))
        for place, piece in enumerate(pieces):
            if isinstance(piece, Resize):
                # A resize comes after all that was written before it.
                if rest or rng.random() < 0.5:
                    rest += pieces[place:]
                    break
                piece.apply(self.durable)
            elif piece.offset // unit in late or rng.random() < 0.5:
                late.add(piece.offset // unit)
                rest.append(piece)
            else:
                piece.apply(self.durable)
        self.unsynced = rest

    def fail_sync(self, rng: random.Random) -> None:
        """Drop the unsynced changes, as Linux does when writing pages back fails.

        Each page lands all the same, or stays readable until the machine stops, or is read anew
        from the platter.  In all three cases it counts as clean: a later sync succeeds.
        """
        reverted: list[FileWrite] = []
        for piece in _split(self.unsynced, PAGE_BYTES):
            fate = rng.choice(("landed", "cached", "reverted"))
            if isinstance(piece, Resize) or fate == "landed":
                piece.apply(self.durable)
            elif fate == "reverted":
                reverted.append(piece)
        for piece in reverted:
            end = piece.offset + len(piece.data)
            platter = bytes(self.durable[piece.offset : end])
            self.cached[piece.offset : end] = platter.ljust(len(piece.data), b"\0")
        self.unsynced.clear()
        self.version += 1

    def after_crash(self, outcome: str, rng: random.Random) -> Inode:
        """Return the file as it is found after a power cut."""
        content = bytearray(self.durable)
        for change in _landed(self.unsynced, outcome, rng):
            change.apply(content)
        if outcome in ("torn", "reordered") and rng.random() < 0.25:
            # The size is written apart from the data: it may be ahead of it.
            ahead = len(self.cached) - len(content)
            if ahead > 0:
                content.extend(bytes(rng.randint(1, ahead)))
        return Inode(bytes(content))


@dataclass(frozen=True, slots=True)
class NameChange:
    """A name that was removed, added, or both in one step (a rename)."""

    removed: str | None
    added: str | None
    node: FileOrFolder | None

    def apply(self, names: dict[str, FileOrFolder]) -> None:
        """Change ``names`` as the call did."""
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.node is not None:
            names[self.added] = self.node

    def touched(self) -> set[str]:
        """Return the names that the change is about."""
        return {name for name in (self.removed, self.added) if name is not None}


class Folder:
    """A directory: its names on the platter, in the cache, and the unsynced changes between."""

    def __init__(self, names: dict[str, FileOrFolder] | None = None) -> None:
        self.durable: dict[str, FileOrFolder] = dict(names or {})
        self.cached: dict[str, FileOrFolder] = dict(names or {})
        self.unsynced: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        """Make a change that programs see at once and a power cut may undo."""
        change.apply(self.cached)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make every change so far durable."""
        for change in self.unsynced:
            change.apply(self.durable)
        self.unsynced.clear()

    def sync_partly(self, rng: random.Random) -> None:
        """Make the changes up to some point durable, as a sync does that is cut short."""
        count = rng.randint(0, len(self.unsynced))
        for change in self.unsynced[:count]:
            change.apply(self.durable)
        del self.unsynced[:count]

    def fail_sync(self, rng: random.Random) -> None:
        """Leave the changes after some point undone: a file system keeps names for its next try."""
        self.sync_partly(rng)

    def after_crash(
        self, outcome: str, rng: random.Random, copies: dict[int, FileOrFolder]
    ) -> Folder:
        """Return the directory, and all below, as they are found after a power cut.

        ``copies`` maps what was copied already, by identity: a file is one file under two names.
        """
        names = dict(self.durable)
        for change in _landed_names(self.unsynced, outcome, rng):
            change.apply(names)
        found: dict[str, FileOrFolder] = {}
        for name in sorted(names):
            node = names[name]
            if id(node) not in copies:
                if isinstance(node, Inode):
                    copies[id(node)] = node.after_crash(outcome, rng)
                else:
                    copies[id(node)] = node.after_crash(outcome, rng, copies)
            found[name] = copies[id(node)]
        return Folder(found)


FileOrFolder = Inode | Folder


def _unit(rng: random.Random) -> int:
    return rng.choice((SECTOR_BYTES, PAGE_BYTES, 1 << 62))


def _split(changes: list[Change], unit: int) -> Iterator[Change]:
    for change in changes:
        if isinstance(change, Resize):
            yield change
        else:
            yield from change.pieces(unit)


def _landed(changes: list[Change], outcome: str, rng: random.Random) -> Iterator[Change]:
    if outcome == "kept":
        yield from changes
    elif outcome == "torn":
        for change in changes:
            if isinstance(change, FileWrite):
                yield change.head(_cut_at(change, rng))
            elif rng.random() < 0.5:
                yield change
    elif outcome == "reordered":
        for change in _split(changes, _unit(rng)):
            if rng.random() < 0.5:
                yield change
    else:
        assert outcome == "lost", f"no such outcome: {outcome}"


def _cut_at(write: FileWrite, rng: random.Random) -> int:
    length = rng.choice((0, len(write.data), rng.randint(0, len(write.data))))
    if rng.random() < 0.5:
        length = max(0, length - (write.offset + length) % SECTOR_BYTES)
    return length


def _landed_names(
    changes: list[NameChange], outcome: str, rng: random.Random
) -> Iterator[NameChange]:
    if outcome == "kept":
        yield from changes
    elif outcome == "torn":
        yield from changes[: rng.randint(0, len(changes))]
    elif outcome == "reordered":
        lost: set[str] = set()
        for change in changes:
            # A file system may reorder changes of different names, never of the same one.
            if lost & change.touched() or rng.random() < 0.5:
                lost |= change.touched()
            else:
                yield change
