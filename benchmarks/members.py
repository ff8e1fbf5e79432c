"""Members of a cluster as processes of a benchmark: with copies, placed as asked, or timed.

    with members_up(folder, backups=2) as cluster:
        db = tidelog.connect(cluster.url)

The members are those of the product, of ``staged_member.py``, or with options of their own of
``tuned_member.py``.  Where the primaries are, and on which disks the members, is decided when their
directories are made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal
from unittest import mock
from uuid import UUID

from tidelog.affinity.assignment import assign
from tidelog.affinity.partitions import Space, partitions_of
from tidelog.engine.node import member_files
from tidelog.engine.system.production import production
from tidelog.tools.cluster.cluster_file import LocalCluster, LocalMember
from tidelog.tools.cluster.processes import command_line
from tidelog.tools.cluster.questions import Conversation, talking
from tidelog.tools.cluster.running import described, look
from tidelog.tools.cluster.standing import HeldPartition, Picture, held_of
from tidelog.tools.server.members import identified, parsed_address

MEMBERS, PARTITIONS, FIRST_PORT = 3, 64, 7400
START_S_MAX = 60.0
ANSWER_S_MAX = 10.0
STAGED = Path(__file__).with_name("staged_member.py")
TUNED = Path(__file__).with_name("tuned_member.py")
MEMORY = Path("/dev/shm")

Layout = Literal["spread", "one primary", "three disks", "in memory"]
"""Primaries on all members or all on the first; else spread, and the directories of all but the
first member, or of all, in memory."""


@dataclass(frozen=True, slots=True)
class Members:
    """A cluster that runs: where, and its processes in the order of its members."""

    folder: Path
    local: LocalCluster
    processes: list[subprocess.Popen[bytes]]
    files: tuple[Path, ...]
    """What members that take the time of their stages, or that have options, tell."""
    options: Mapping[str, int] | None = None

    @property
    def url(self) -> str:
        return "tidelog://" + ",".join(member.address for member in self.local.members)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    def kill(self, place: int) -> None:
        """End a member by a signal that it does not hear of."""
        self.processes[place].kill()
        self.processes[place].wait()

    def start(self, place: int) -> None:
        """Run a member, again or for the first time."""
        # The words "server run DIRECTORY" are how a member's process is found.
        member = self.local.members[place]
        command = command_line(str(self.folder / member.directory))[:-1]
        if self.files:
            script, given = STAGED if self.options is None else TUNED, self.options or {}
            options = [f"{name}={value}" for name, value in given.items()]
            command = [sys.executable, str(script), *command[3:], str(self.files[place]), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.processes[place : place + 1] = [process]

    def look(self) -> Picture:
        return look(str(self.folder), self.local)

    def held(self) -> list[HeldPartition]:
        """Who holds the partitions, as the first member that answers knows it."""
        for member in self.local.members:
            with suppress(OSError), self._asking(member) as says:
                return list(held_of(says.ask_copies()))
        raise RuntimeError("no member answers")

    def ways_back(self, place: int) -> Counter[str]:
        """How often a member came back to a partition by which way, as the others know it."""
        found: Counter[str] = Counter()
        for held in self.held():
            author = self._places().index(held.author)
            with self._asking(self.local.members[author]) as says:
                returns = says.ask("partition", held.partition)["returns"]
            found.update(row[3] for row in returns if row[0] == self._places()[place].bytes)
        return found

    def _asking(self, member: LocalMember) -> AbstractContextManager[Conversation]:
        return talking(parsed_address(member.address), self.local.cluster.bytes, ANSWER_S_MAX)

    def coordinator(self) -> int:
        """The place of the member that coordinates."""
        newest = self.look().newest
        assert newest is not None
        assert newest.coordinator is not None
        return self._places().index(newest.coordinator)

    def placed(self, keys: Iterable[bytes]) -> list[int]:
        """The places of the members that serve keys of a map of bytes."""
        newest = self.look().newest
        assert newest is not None
        places = [self._places().index(primary) for primary, _ in newest.primaries]
        return [places[number] for number in partitions_of(keys, Space(0, self.local.partitions))]

    def _places(self) -> list[UUID]:
        return [member.id for member in self.local.members]


@contextmanager
def members_up(
    folder: Path,
    *,
    backups: int = 0,
    layout: Layout = "spread",
    staged: bool = False,
    partitions: int = PARTITIONS,
    options: Mapping[str, int] | None = None,
) -> Iterator[Members]:
    """Run new members until the block ends; ``staged`` ones tell of stages.

    Those with ``options`` tell what they have sent to copies that come back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    local = described(str(folder), MEMBERS, partitions, FIRST_PORT, backups)
    kept = len(local.members) if layout in ("spread", "one primary") else layout == "three disks"
    memory = tempfile.mkdtemp(prefix="members-", dir=MEMORY) if kept < MEMBERS else None
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for member in local.members[kept:]:
            assert memory is not None
            (Path(memory) / member.directory).mkdir()
            (folder / member.directory).symlink_to(Path(memory) / member.directory)
        _make(folder, local, layout == "one primary")
        files = tuple(folder / f"{member.name}.told" for member in local.members)
        up = Members(folder, local, processes, files if staged or options else (), options)
        for place in range(MEMBERS):
            up.start(place)
        _wait_until_whole(up)
        yield up
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        if memory is not None:
            shutil.rmtree(memory)


def _make(folder: Path, local: LocalCluster, one_primary: bool) -> None:
    known = identified(local.cluster, {member.name: member.address for member in local.members})
    first = local.members[0].id

    def gathered(*arguments: Any) -> list[list[Any]]:
        rows: Sequence[Sequence[Any]] = assign(*arguments)
        return [[first, *(member for member in row if member != first)] for row in rows]

    with mock.patch.object(member_files, "assign", gathered if one_primary else assign):
        for member in local.members:
            member_files.init_member(
                production(),
                os.path.realpath(folder / member.directory),
                cluster=local.cluster,
                member=member.id,
                members=known,
                partitions=local.partitions,
                backups=local.backups,
            )


def _wait_until_whole(up: Members) -> None:
    deadline = monotonic() + START_S_MAX
    while not up.look().whole:
        ended = [process.args for process in up.processes if process.poll() is not None]
        if ended or monotonic() > deadline:
            raise RuntimeError(f"the members did not come up; ended: {ended}")
        sleep(0.05)
