"""Members of a cluster that are none: threads and dicts that speak what ``client-protocol`` says.

Real frames over real sockets, and a script of faults: what a member does to its next requests.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from tidelog.affinity.errors import ConflictError, NotFoundError, PartitionUnavailableError
from tidelog.affinity.partitions import partition_of
from tidelog.engine.client.views import view_of
from tidelog.engine.commit.outcomes import home_of
from tidelog.engine.data.digests import range_digest
from tidelog.engine.net.failures import failure_of
from tidelog.engine.net.frames import (
    KNOWN,
    FrameDecoder,
    FrameError,
    Message,
    frame,
    pack_message,
)
from tidelog.engine.net.handshake import Introduction, Refusal, heard
from tidelog.engine.net.kinds import BY_NAME, CLIENT
from tidelog.engine.net.operations import check_arguments

CLUSTER, STORE = b"c" * 16, b"s" * 16

Fault = Literal[
    "break_before", "break_after", "remap", "wait", "again", "silent", "pending", "held"
]
"""What a member does to a request: end the connection before or behind it, refuse it, say nothing;
``pending`` breaks the connection of a commit, and carries it out when it is asked about it; a
``held`` answer goes its way when it is released."""


class FailedError(Exception):
    """What a member answers with a code of the protocol."""


class Members:
    """A cluster: what all its members know, and the data of all partitions."""

    def __init__(self, count: int, partitions: int, directory: str | None = None) -> None:
        self.lock = threading.RLock()
        self.decided = 1
        self.namespaces: list[list[Any]] = []
        self.last_namespace = 15
        self.partitions = partitions
        self.data: list[dict[tuple[int, bytes], tuple[bytes, int, int]]] = [
            {} for _ in range(partitions)
        ]
        self.counters = [0] * partitions
        self.epochs = [1] * partitions
        self.primaries = [partition % count for partition in range(partitions)]
        self.commits: dict[bytes, list[Any]] = {}
        self.pending: dict[bytes, Any] = {}
        self.held: list[tuple[Served, Message]] = []
        self.cancelled: list[int] = []
        self.asked: list[tuple[int, str]] = []
        self.values_wanted: list[bool] = []
        """Of each scan."""
        """Members and operations, in the order in which requests came."""
        self.members = [
            Member(self, number, directory and f"{directory}/{number}") for number in range(count)
        ]

    def view(self) -> list[Any]:
        members = [[m.id, 1, m.present, m.address] for m in self.members]
        return [self.decided, members, [[0, self.partitions, 0]], list(self.namespaces),
                list(self.primaries), list(self.epochs), [],
                [[place] for place in self.primaries]]  # fmt: skip

    def decide(self) -> None:
        self.decided += 1

    def release(self) -> None:
        """Let held answers go."""
        with self.lock:
            while self.held:
                served, answer = self.held.pop()
                served.say(answer)

    @property
    def url(self) -> str:
        if self.members[0].address.startswith("/"):
            return f"tidelog+unix://{self.members[0].address}"
        return "tidelog://" + ",".join(member.address for member in self.members)

    def close(self) -> None:
        for member in self.members:
            member.leave()

    # -------------------------------------------------------------- what members answer

    def answer(self, member: Member, operation: str, arguments: list[Any]) -> Any:
        check_arguments(operation, arguments)
        return getattr(self, f"_{operation.replace('-', '_')}")(member, *arguments)

    def check_served(self, member: Member, partitions: list[int]) -> None:
        for partition in partitions:
            primary = self.members[self.primaries[partition]]
            if primary is not member and not primary.present:
                raise PartitionUnavailableError("nobody is there", partition=partition)
            if primary is not member:
                raise FailedError("remap")

    def check_map(self, number: int) -> None:
        if all(row[0] != number for row in self.namespaces):
            raise NotFoundError("the map was dropped")

    def place(self, key: bytes) -> int:
        (space,) = view_of(self.view()).spaces
        return partition_of(key, space)

    def _lock(self, member: Member, *wanted: Any) -> Any:
        """Nobody is in the way."""
        _, _, number, keys, _, reads, *_ = wanted
        self.check_map(number)
        rows = [self.data[self.place(key)].get((number, key), (None, 0, 0)) for key in keys]
        return member.id, rows if reads else None

    def _unlock(self, _member: Member, _transaction: bytes) -> None:
        """Nothing was locked."""

    def _commit_locked(self, member: Member, _transaction: bytes, *commit: Any) -> Any:
        return self._commit(member, *commit)

    def _get(self, member: Member, number: int, keys: list[bytes]) -> Any:
        self.check_map(number)
        places = [self.place(key) for key in keys]
        self.check_served(member, places)
        found = [
            self.data[place].get((number, key), (None, 0, 0))
            for place, key in zip(places, keys, strict=True)
        ]
        return [list(column) for column in zip(*found, strict=True)] or [[], [], []]

    def range(
        self, number: int, partitions: list[int], low: bytes, high: bytes | None
    ) -> list[tuple[bytes, tuple[bytes, int, int]]]:
        return sorted(
            (key, found)
            for partition in partitions
            for (namespace, key), found in self.data[partition].items()
            if namespace == number and low <= key and (high is None or key < high)
        )

    def _scan(
        self,
        member: Member,
        number: int,
        partitions: list[int],
        low: bytes,
        high: bytes | None,
        reverse: bool,
        limit: int,
        versions: bool,
        values: bool,
    ) -> Any:
        self.check_map(number)
        self.check_served(member, partitions)
        self.values_wanted.append(values)
        rows = self.range(number, partitions, low, high)
        if reverse:
            rows.reverse()
        shown = rows[:limit]
        return [
            [key for key, _ in shown],
            [found[0] for _, found in shown if values],
            *([found[place] for _, found in shown if versions] for place in (1, 2)),
            len(rows) > limit,
        ]

    def _commit(
        self,
        member: Member,
        tx_id: bytes,
        attempt: int,
        given: bool,
        tag: str | None,
        reads: list[Any],
        ranges: list[Any],
        writes: list[Any],
        partitions: list[int],
        epochs: list[int],
    ) -> Any:
        assert epochs == [self.epochs[one] for one in partitions]
        if tx_id in self.commits:
            return self.commits[tx_id]
        used = [*reads, *writes]
        places = {self.place(key) for row in used for key in row[1]}
        places.update(partition for row in ranges for partition in row[1])
        assert places <= set(partitions)
        if len(self.members) == 1:
            self.check_served(member, sorted(places))
        else:
            self.check_groups(member, self.home(tx_id, given, places, writes), places, ranges)
        for row in [*used, *ranges]:
            self.check_map(row[0])
        for number, keys, epochs, counters in reads:
            for key, epoch, counter in zip(keys, epochs, counters, strict=True):
                found = self.data[self.place(key)].get((number, key), (None, 0, 0))
                if found[1:] != (epoch, counter):
                    raise ConflictError("changed", namespace=str(number), key=key, winner=None)
        for number, partitions, low, high, count, digest in ranges:
            rows = self.range(number, partitions, low, high)
            versions = [found for _, found in rows]
            seen = range_digest(
                [key for key, _ in rows], [v[1] for v in versions], [v[2] for v in versions]
            )
            if (len(rows), seen) != (count, digest):
                raise ConflictError("changed", namespace=str(number), key=None, winner=None)
        counts: dict[int, int] = {}
        for number, keys, values in writes:
            for key, value in zip(keys, values, strict=True):
                place = self.place(key)
                counts[place] = counts.get(place, 0) + 1
                self.counters[place] += 1
                if value is None:
                    self.data[place].pop((number, key), None)
                else:
                    version = (value, self.epochs[place], self.counters[place])
                    self.data[place][number, key] = version
        answer = [
            7, sorted(counts), [self.epochs[place] for place in sorted(counts)],
            [self.counters[place] - counts[place] + 1 for place in sorted(counts)],
            [counts[place] for place in sorted(counts)],
        ]  # fmt: skip
        if writes:
            self.commits[tx_id] = answer
        return answer

    def home(self, tx_id: bytes, given: bool, places: set[int], writes: list[Any]) -> int:
        """Return the partition whose member leads a commit, and is asked for its outcome."""
        if given:
            return home_of(tx_id, self.partitions)
        return min((self.place(key) for row in writes for key in row[1]), default=min(places))

    def check_groups(self, member: Member, home: int, places: set[int], ranges: list[Any]) -> None:
        """Raise unless who serves the home is asked, and reaches all others."""
        self.check_served(member, [home])
        assert all(len(row[1]) == 1 for row in ranges), "what was read of several at once"
        if not all(self.members[self.primaries[place]].up for place in places):
            raise FailedError("wait")

    def _outcome(self, member: Member, tx_id: bytes, given: bool, home: int) -> str:
        self.check_served(member, [home])
        if tx_id in self.pending:
            self.answer(*self.pending.pop(tx_id))
        return "committed" if tx_id in self.commits else "rolled_back"

    def _map(self, member: Member, name: str, *codecs: Any) -> int:
        for row in self.namespaces:
            if row[1] == name:
                return int(row[0])
        self.last_namespace += 1
        self.namespaces.append([self.last_namespace, name, *codecs, 0])
        self.decide()
        return self.last_namespace

    def _drop(self, member: Member, name: str, number: int) -> None:
        left = [row for row in self.namespaces if row[1] != name]
        if len(left) == len(self.namespaces):
            raise NotFoundError(f"there is no map {name!r}")
        self.namespaces = left
        self.decide()

    def _rename(self, member: Member, old: str, new: str, number: int) -> None:
        self.namespaces = [[row[0], new if row[1] == old else row[1], *row[2:]]
                           for row in self.namespaces]  # fmt: skip
        self.decide()

    def _status(self, member: Member) -> dict[str, Any]:
        return {"member": member.id, "boot": 1, "decided": self.decided}


class Member:
    """One member: where it listens, and what it does to its next requests."""

    def __init__(self, cluster: Members, number: int, path: str | None) -> None:
        self.cluster = cluster
        self.number = number
        self.id = bytes([number + 1]) * 16
        self.present = True
        self.up = True
        self.faults: deque[Fault] = deque()
        self.connections: set[socket.socket] = set()
        self.newest: dict[bytes, int] = {}
        self.path = path
        self.address = path or "127.0.0.1:0"
        self._listen()

    def _listen(self) -> None:
        if self.path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(self.path)
            self.listener.listen()
        else:
            port = int(self.address.rpartition(":")[2])
            self.listener = socket.create_server(("127.0.0.1", port))
            self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def leave(self, *, told: bool = False) -> None:
        """End as by ``kill -9``; if ``told`` the others know at once."""
        with self.cluster.lock:
            self.up = False
            with suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            for connection in list(self.connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            if told:
                self.present = False
                self.cluster.decide()

    def come_back(self) -> None:
        with self.cluster.lock:
            self.up = self.present = True
            self.cluster.decide()
            self._listen()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                made, _ = listener.accept()
            except OSError:
                return
            with self.cluster.lock:
                if not self.up:
                    made.close()
                    return
                self.connections.add(made)
            if not self.path:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        with made:
            with suppress(OSError, FrameError):
                Served(self, made).run()
            with self.cluster.lock:
                self.connections.discard(made)


class BrokenError(OSError):
    """The script says that the connection ends here."""


class Served:
    """One connection of a client, as its member sees it."""

    def __init__(self, member: Member, made: socket.socket) -> None:
        self.member = member
        self.cluster = member.cluster
        self.socket = made
        self.decoder = FrameDecoder()
        self.told = -1
        self.line = b""
        self.number = 0

    def run(self) -> None:
        while data := self.socket.recv(1 << 16):
            for message in self.decoder.feed(data):
                with self.cluster.lock:
                    if not self.member.up:
                        return
                    self.take(message)

    def say(self, *messages: Message) -> None:
        self.socket.sendall(frame([pack_message(message) for message in messages]))

    def take(self, message: Message) -> None:
        if not self.line:
            self.greet(message)
        elif self.member.newest[self.line] != self.number:
            raise BrokenError
        elif message[0] == BY_NAME["request"].number:
            self.request(message)
        elif message[0] == BY_NAME["cancel"].number:
            self.cluster.cancelled.append(message[1])

    def greet(self, message: Message) -> None:
        other = heard(message)
        assert isinstance(other, Introduction)
        if other.cluster not in (b"", CLUSTER):
            self.say(Refusal("cluster", "another cluster").message())
            raise BrokenError
        self.decoder.limits = KNOWN
        self.line, self.number = other.member, other.number
        self.member.newest[self.line] = max(self.number, self.member.newest.get(self.line, 0))
        mine = Introduction(
            role="member", channel=CLIENT, member=self.member.id, cluster=CLUSTER, boot=1,
            number=other.number, decided=self.cluster.decided,
        )  # fmt: skip
        self.told = self.cluster.decided
        self.say(mine.message())
        self.say(BY_NAME["welcome"].message(CLUSTER, STORE, b"h" * 16, self.cluster.view()))

    def request(self, message: Message) -> None:
        _, number, _, operation, arguments = message
        self.cluster.asked.append((self.member.number, operation))
        fault = None
        if operation != "status" and self.member.faults:
            fault = self.member.faults.popleft()
        if fault == "break_before":
            raise BrokenError
        if fault == "pending" and operation == "commit":
            self.cluster.pending[arguments[0]] = (self.member, operation, arguments)
            raise BrokenError
        if fault == "silent":
            return
        answer = self.answer(number, operation, arguments, fault)
        if fault == "break_after":
            raise BrokenError
        if fault == "held":
            self.cluster.held.append((self, answer))
            return
        news = []
        if self.told != self.cluster.decided:
            self.told = self.cluster.decided
            news = [BY_NAME["topology"].message(self.cluster.view())]
        self.say(*news, answer)

    def answer(
        self, number: int, operation: str, arguments: list[Any], fault: Fault | None
    ) -> Message:
        try:
            if fault in ("remap", "wait", "again"):
                raise FailedError(fault)
            value = self.cluster.answer(self.member, operation, arguments)
        except FailedError as error:
            return BY_NAME["failure"].message(number, str(error), "", {})
        except Exception as error:
            return BY_NAME["failure"].message(number, *failure_of(error))
        return BY_NAME["response"].message(number, value)


@contextmanager
def members(count: int = 1, partitions: int = 4, directory: str | None = None) -> Iterator[Members]:
    """A cluster of so many members, which ends with the block."""
    cluster = Members(count, partitions, directory)
    try:
        yield cluster
    finally:
        cluster.close()
