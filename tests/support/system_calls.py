"""What a program really asks of the kernel: its writes, syncs and renames, seen by ``strace``.

``trace`` runs a program and returns its calls; ``Disk`` replays them as a disk sees them that
forgets whatever was not synced, and notes each step that was taken too early:

- an acknowledgement (a line on standard output, unless it begins with ``relaxed``) before the log
  was synced, ``checkpoint`` or ``close`` before the data file was;
- pages of the data file before the log was synced, or the root of the data file before its pages;
- a rename before what the file holds was synced, or a step after it before its directory was.

A segment that a process that died may have left in the page cache has to be written once more, and
synced, before anything is built on it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]

_CALLS = (
    "openat,pwrite64,pwritev,pwritev2,write,writev,fdatasync,fsync,msync,rename,renameat,renameat2,"
    "unlink,unlinkat,ftruncate"
)
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<.*>)?.*")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_FILE = re.compile(r"(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Call(NamedTuple):
    """One call that succeeded: ``write``, ``sync``, ``rename``, ``unlink``, ``cut`` or ``tell``.

    ``path`` is the file, ``other`` the new name of a rename or the text that was told; ``through``
    says that the write itself is durable; ``start`` and ``stop`` are the bytes of a ``pwrite``.
    """

    kind: str
    path: str
    other: str = ""
    through: bool = False
    start: int = 0
    stop: int = 0


def trace(program: str, *arguments: object) -> list[Call]:
    """Run a program in an interpreter of its own under ``strace``; return what it did to files."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as told:
        command = ["strace", "-f", "-y", "-qq", "-s", "48", "-e", f"trace={_CALLS}"]
        try:
            done = subprocess.run(
                [*command, "-o", told.name, sys.executable, "-c", program, *map(str, arguments)],
                cwd=TESTS,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        except FileNotFoundError as error:
            raise AssertionError("strace is needed; `make test` installs it on Debian") from error
        assert done.returncode == 0, done.stderr[-3000:]
        return list(calls_of(told.read().splitlines()))


def calls_of(lines: Sequence[str]) -> Iterator[Call]:
    """Yield the calls in the output of ``strace``, each where it ended."""
    begun: dict[str, str] = {}
    durable: set[str] = set()
    for text in lines:
        line = text
        if line.endswith("<unfinished ...>"):
            begun[line.split()[0]] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        resumed = _RESUMED.fullmatch(line)
        if resumed is not None:
            line = begun.pop(resumed[1]) + resumed[2]
        found = _LINE.fullmatch(line)
        if found is None or int(found[4]) < 0:
            continue
        name, arguments, result = found[2], found[3], found[4]
        if name == "openat":
            durable.discard(result)
            if "O_DSYNC" in arguments or "O_SYNC" in arguments:
                durable.add(result)
        else:
            call = _call(name, arguments, durable)
            if name == "pwrite64":
                start = int(arguments.rsplit(", ", 1)[1])
                call = call._replace(start=start, stop=start + int(result))
            yield call


def _call(name: str, arguments: str, durable: set[str]) -> Call:
    """Return what a line stands for; ``durable`` are the descriptors whose writes are so."""
    texts, files = _TEXT.findall(arguments), _FILE.findall(arguments)
    places = [path for _, path in files] or [""]
    if name.startswith("rename"):
        return Call("rename", os.path.join(places[0], texts[0]), os.path.join(places[-1], texts[1]))
    if name.startswith("unlink"):
        return Call("unlink", os.path.join(places[0], texts[0]))
    number, path = files[0]
    if name in ("fdatasync", "fsync", "msync"):
        return Call("sync", path)
    if name == "ftruncate":
        return Call("cut", path)
    if number == "1":
        return Call("tell", path, texts[0].removesuffix("\\n"))
    return Call("write", path, through=number in durable)


@dataclass(slots=True)
class Disk:
    """A disk to which calls are made; ``early`` has what was done too soon, as sentences.

    ``stale`` are files of which the page cache may hold more than the disk, since a process died.
    """

    root: Path
    stale: set[str] = field(default_factory=set)
    early: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _renamed: dict[str, str] = field(default_factory=dict)

    def replay(self, calls: Sequence[Call]) -> list[str]:
        """Make all calls; return what was done too soon."""
        for call in calls:
            if call.kind == "tell" or call.path.startswith(f"{self.root}/") or self._is_root(call):
                self._make(call)
        return self.early

    def _is_root(self, call: Call) -> bool:
        return call.path == str(self.root)

    def _make(self, call: Call) -> None:
        if call.kind == "sync":
            self._dirty.discard(call.path)
            self._renamed.pop(call.path, None)
            return
        if self._renamed:
            told = ", ".join(self._renamed.values())
            self._note(call, f"the directory was not synced since {told} was renamed")
            self._renamed.clear()
        getattr(self, f"_{call.kind}")(call)

    def _tell(self, call: Call) -> None:
        self._count("told")
        if call.other in ("checkpoint", "close"):
            self._synced(call, ".mdb")  # the record of a checkpoint is a courtesy
        if call.other != "checkpoint" and not call.other.startswith("relaxed"):
            self._synced(call, ".log")

    def _write(self, call: Call) -> None:
        name = os.path.basename(call.path)
        if name == "data.mdb" and call.through:
            self._count("root")
            if call.path in self._dirty:
                self._note(call, "the pages below the root of the data file were not synced")
            return
        if name == "data.mdb":
            self._count("pages")
            self._synced(call, ".log")
        self._dirty.add(call.path)
        self.stale.discard(call.path)

    def _cut(self, call: Call) -> None:
        """What is cut off was never told."""

    def _unlink(self, call: Call) -> None:
        self._dirty.discard(call.path)

    def _rename(self, call: Call) -> None:
        self._count("renamed")
        name = os.path.basename(call.other)
        if call.path in self._dirty:
            self._note(call, "what the file holds was not synced")
        self._dirty.discard(call.other)
        if call.path in self._dirty:
            self._dirty.remove(call.path)
            self._dirty.add(call.other)
        self._renamed[os.path.dirname(call.other)] = name

    def _synced(self, call: Call, ending: str) -> None:
        for path in sorted(self._dirty | self.stale):
            if path.endswith(ending):
                self._note(call, f"{os.path.basename(path)} was not synced")

    def _note(self, call: Call, problem: str) -> None:
        name = os.path.basename(call.path)
        self.early.append(f"{call.kind} {call.other if call.kind == 'tell' else name}: {problem}")

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
