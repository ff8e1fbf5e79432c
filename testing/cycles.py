"""Whether recorded transactions were strictly serializable: a graph of them has no cycle.

Nothing has to be guessed, as values are unique and their order is known.  The transactions are the
nodes, and the edges are

- ``ww``: wrote the value of a key that the other one replaced;
- ``wr``: wrote a value that the other one read;
- ``rw``: read a value, or an absence, that the other one replaced next;
- ``rt``: was answered before the other one began.

A history is strictly serializable if and only if the graph has no cycle and no read or log entry is
impossible by itself.  Names of anomalies are those of Adya (1999) and of Elle (Kingsbury and
Alvaro, VLDB 2020).

A read of None says "no value".  Where a key was deleted that may be its beginning or any deletion;
the checker leaves out those that contradict the rest, and draws edges once one is left.  So it
never rejects a good history, but may pass a bad one; to lose nothing record what deletions wrote.

Left out: predicates other than key ranges, and what rolled-back transactions read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from .transactions import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Transaction,
    TransactionHistory,
    TxKey,
    TxValue,
)


class TransactionAnomaly(NamedTuple):
    """What is wrong, by name, with the transactions concerned and one line that says how."""

    name: str
    transactions: tuple[str, ...]
    text: str


def check_transactions(history: TransactionHistory) -> list[TransactionAnomaly]:
    """Return what keeps a history from being strictly serializable, the most basic first.

    Impossible reads and log entries are returned alone: edges drawn from them would mislead.
    """
    log = _Log(history)
    impossible = [*_log_anomalies(history, log), *_read_anomalies(log)]
    return impossible or _cycle_anomalies(log, _edges(log))


def assert_strictly_serializable(history: TransactionHistory) -> None:
    """Raise ``AssertionError`` with every anomaly of a history, one line each."""
    anomalies = check_transactions(history)
    assert not anomalies, "\n".join(f"{found.name}: {found.text}" for found in anomalies)


# ------------------------------------------------------------------ what the log holds


class _Log:
    """Who wrote each value, where it stands, and which transactions count as committed."""

    def __init__(self, history: TransactionHistory) -> None:
        self.versions = history.versions
        self.writers: dict[TxValue, tuple[Transaction, TxKey]] = {}
        self.replaced: dict[TxValue, Transaction] = {}
        for transaction in history.transactions:
            self._add(transaction)
        self.places = {
            (key, value): place
            for key, values in history.versions.items()
            for place, value in enumerate(values)
        }
        self.committed = sorted(
            (t for t in history.transactions if self._is_committed(t)), key=lambda t: (t.end, t.id)
        )

    def _add(self, transaction: Transaction) -> None:
        for key, value in transaction.writes.items():
            assert value not in self.writers, f"{value!r} is not unique"
            self.writers[value] = (transaction, key)
        for values in transaction.replaced.values():
            self.replaced.update(dict.fromkeys(values, transaction))

    def _is_committed(self, transaction: Transaction) -> bool:
        return transaction.status == COMMITTED or (
            transaction.status == UNKNOWN and any(self.holds(transaction))
        )

    def holds(self, transaction: Transaction) -> list[bool]:
        return [write in self.places for write in transaction.writes.items()]

    def writer(self, key: TxKey, place: int) -> str | None:
        """Return who wrote the value at a place; None if nobody did."""
        values = self.versions.get(key, ())
        return self.writers[values[place]][0].id if 0 <= place < len(values) else None

    def absences(self, key: TxKey) -> list[int]:
        """Return the places at which the key has no value: before the first, and deletions."""
        deleted = [
            place
            for place, value in enumerate(self.versions.get(key, ()))
            if key in self.writers[value][0].deletes
        ]
        return [-1, *deleted]

    def reads(self, transaction: Transaction) -> Iterator[tuple[TxKey, TxValue]]:
        """Yield all that a transaction saw of others, absent keys of scanned ranges included."""
        yield from transaction.reads.items()
        for scan in transaction.scans:
            yield from scan.found.items()
            for key in self.versions:
                if key in scan and key not in scan.found and key not in scan.own:
                    yield key, None


def _log_anomalies(history: TransactionHistory, log: _Log) -> list[TransactionAnomaly]:
    found = []
    for key, values in history.versions.items():
        for place, value in enumerate(values):
            name, who = _entry_anomaly(log, key, place, value)
            if name:
                found.append(TransactionAnomaly(name, who, f"the log holds {value!r} for {key!r}"))
    for transaction in history.transactions:
        holds = log.holds(transaction)
        if transaction.status == COMMITTED and not all(holds):
            text = f"{transaction.id} was committed, and the log lacks some of its writes"
            found.append(TransactionAnomaly("lost write", (transaction.id,), text))
        elif transaction.status == UNKNOWN and any(holds) and not all(holds):
            text = f"the log holds some of the writes of {transaction.id}, not all"
            found.append(TransactionAnomaly("torn transaction", (transaction.id,), text))
    return found


def _entry_anomaly(
    log: _Log, key: TxKey, place: int, value: TxValue
) -> tuple[str | None, tuple[str, ...]]:
    if value in log.replaced:
        return "intermediate write", (log.replaced[value].id,)
    if value not in log.writers:
        return "garbage write", ()
    writer, written = log.writers[value]
    if writer.status == ABORTED:
        return "aborted write", (writer.id,)
    if written != key or log.places[key, value] != place:
        return "misplaced write", (writer.id,)
    return None, ()


def _read_anomalies(log: _Log) -> list[TransactionAnomaly]:
    found = []
    for transaction in log.committed:
        for complaint in transaction.complaints:
            found.append(
                TransactionAnomaly("internal", (transaction.id,), f"{transaction.id} {complaint}")
            )
        seen: dict[TxKey, TxValue] = {}
        for key, value in log.reads(transaction):
            name, others = _read_anomaly(log, transaction, key, value)
            if name is None and seen.setdefault(key, value) != value:
                name, others = "internal", ()
            if name:
                text = f"{transaction.id} read {value!r} at {key!r}"
                found.append(TransactionAnomaly(name, (transaction.id, *others), text))
    return found


def _read_anomaly(
    log: _Log, reader: Transaction, key: TxKey, value: TxValue
) -> tuple[str | None, tuple[str, ...]]:
    if value is None:
        return None, ()
    if value in log.replaced:
        return "G1b", (log.replaced[value].id,)
    writer, written = log.writers.get(value, (None, None))
    if writer is None or written != key:
        return "garbage read", ()
    if writer is reader:
        return "internal", ()
    if (key, value) not in log.places:
        return "G1a", (writer.id,)
    return None, ()


# ------------------------------------------------------------------ the graph

# Transactions are named by id; moments of the time line by their number.
_Vertex = str | int


class _Graph:
    """Edges by node, each with its kinds and, for the text, a key."""

    def __init__(self) -> None:
        self.after: dict[_Vertex, dict[_Vertex, dict[str, TxKey]]] = {}
        self.before: dict[_Vertex, set[_Vertex]] = {}
        self.lost_updates: list[TransactionAnomaly] = []

    def add(self, one: _Vertex | None, kind: str, other: _Vertex | None, key: TxKey = "") -> None:
        if one is not None and other is not None and one != other:
            self.after.setdefault(one, {}).setdefault(other, {}).setdefault(kind, key)
            self.before.setdefault(other, set()).add(one)

    def next(self, node: _Vertex, kinds: Collection[str]) -> list[_Vertex]:
        edges = self.after.get(node, {})
        return [other for other, labels in edges.items() if not labels.keys().isdisjoint(kinds)]

    def reached(self, start: _Vertex, *, backwards: bool = False) -> set[_Vertex]:
        """Return every node on a path from ``start``, or on one to it."""
        edges: Mapping[_Vertex, Collection[_Vertex]] = self.before if backwards else self.after
        seen: set[_Vertex] = set()
        frontier = [start]
        while frontier:
            fresh = [node for node in edges.get(frontier.pop(), ()) if node not in seen]
            seen.update(fresh)
            frontier.extend(fresh)
        return seen

    def path(self, start: _Vertex, goal: _Vertex, kinds: Collection[str]) -> list[_Vertex] | None:
        """Return a shortest path of at least one edge; from a node to itself it is a cycle."""
        came_from: dict[_Vertex, _Vertex] = {}
        frontier = deque([start])
        while frontier:
            node = frontier.popleft()
            for other in self.next(node, kinds):
                if other not in came_from:
                    came_from[other] = node
                    frontier.append(other)
                if other == goal:
                    return _walk_back(came_from, start, goal)
        return None

    def show(self, path: Sequence[_Vertex], kinds: Sequence[str]) -> str:
        text = str(path[0])
        for one, other in pairwise(path):
            labels = self.after[one][other]
            kind = next(kind for kind in kinds if kind in labels)
            if isinstance(other, str):
                text += (
                    f" -{kind}-> {other}"
                    if kind == "rt"
                    else f" -{kind} {labels[kind]!r}-> {other}"
                )
        return text


def _walk_back(
    came_from: Mapping[_Vertex, _Vertex], start: _Vertex, goal: _Vertex
) -> list[_Vertex]:
    path = [goal, came_from[goal]]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def _edges(log: _Log) -> _Graph:
    graph = _Graph()
    for key, values in log.versions.items():
        for place in range(len(values)):
            graph.add(log.writer(key, place - 1), "ww", log.writer(key, place), key)
    _add_real_time(graph, log.committed)
    open_absences = []
    for transaction in log.committed:
        for key, value in log.reads(transaction):
            places = [log.places[key, value]] if value is not None else log.absences(key)
            if len(places) == 1:
                _add_read(graph, log, transaction, key, places[0])
            else:
                open_absences.append((transaction, key, places))
    _settle_absences(graph, log, open_absences)
    return graph


def _add_real_time(graph: _Graph, committed: Sequence[Transaction]) -> None:
    """Draw a time line of answers, so that edges stay few: answer to moment, moment to start."""
    ends = [t for t in committed if t.end < inf]
    for moment, transaction in enumerate(ends):
        graph.add(transaction.id, "rt", moment)
        if moment:
            graph.add(moment - 1, "rt", moment)
    moment = -1
    for transaction in sorted(committed, key=lambda t: t.start):
        while moment + 1 < len(ends) and ends[moment + 1].end < transaction.start:
            moment += 1
        if moment >= 0:
            graph.add(moment, "rt", transaction.id)


def _add_read(graph: _Graph, log: _Log, reader: Transaction, key: TxKey, place: int) -> None:
    follower = log.writer(key, place + 1)
    graph.add(log.writer(key, place), "wr", reader.id, key)
    graph.add(reader.id, "rw", follower, key)
    own = log.places.get((key, reader.writes.get(key)), -1)
    if follower is not None and own > place + 1:
        text = f"{reader.id} replaced {key!r} without having seen what {follower} wrote"
        graph.lost_updates.append(TransactionAnomaly("lost update", (reader.id, follower), text))


def _settle_absences(
    graph: _Graph, log: _Log, absences: list[tuple[Transaction, TxKey, list[int]]]
) -> None:
    """Give each read of None a place where only one fits, until nothing changes any more."""
    left = len(absences) + 1
    while len(absences) < left:
        left, remaining = len(absences), []
        for reader, key, places in absences:
            later, earlier = graph.reached(reader.id), graph.reached(reader.id, backwards=True)
            fitting = [
                place
                for place in places
                if log.writer(key, place) not in {reader.id, *later}
                and log.writer(key, place + 1) not in earlier - {reader.id}
            ]
            if len(fitting) > 1:
                remaining.append((reader, key, fitting))
            else:
                _add_read(graph, log, reader, key, (fitting or places)[-1])
        absences = remaining


# ------------------------------------------------------------------ cycles

_WRITES = ("ww",)
_READS = ("ww", "wr")
_SERIAL = ("ww", "wr", "rw")
_STRICT = ("ww", "wr", "rw", "rt")

# A long history may be one knot; a short cycle is found from nearly any of its transactions.
_CYCLE_SEARCHES_MAX = 25


def _cycle_anomalies(log: _Log, graph: _Graph) -> list[TransactionAnomaly]:
    """Return a shortest cycle per knot of transactions, of the most basic kind that there is."""
    for name, kinds in (("G0", _WRITES), ("G1c", _READS)):
        found = [_anomaly(graph, name, knot, kinds) for knot in _knots(log, graph, kinds)]
        if found:
            return found
    if graph.lost_updates:
        return graph.lost_updates
    knots = _knots(log, graph, _SERIAL)
    if knots:
        return [_single(graph, knot) or _anomaly(graph, "G2", knot, _SERIAL) for knot in knots]
    knots = _knots(log, graph, _STRICT)
    return [_anomaly(graph, "real-time violation", knot, _STRICT) for knot in knots]


def _single(graph: _Graph, knot: list[str]) -> TransactionAnomaly | None:
    """Return a cycle with exactly one ``rw`` edge, if the knot has one."""
    for reader in knot:
        for writer in graph.next(reader, ("rw",)):
            path = graph.path(writer, reader, _READS)
            if path is not None:
                text = graph.show([reader, *path], _SERIAL)
                return TransactionAnomaly("G-single", _names(path), text)
    return None


def _anomaly(graph: _Graph, name: str, knot: list[str], kinds: Sequence[str]) -> TransactionAnomaly:
    cycles = [graph.path(node, node, kinds) for node in knot[:_CYCLE_SEARCHES_MAX]]
    shortest = min((cycle for cycle in cycles if cycle is not None), key=len)
    return TransactionAnomaly(name, _names(shortest[1:]), graph.show(shortest, kinds))


def _names(path: Sequence[_Vertex]) -> tuple[str, ...]:
    return tuple(sorted(node for node in path if isinstance(node, str)))


def _knots(log: _Log, graph: _Graph, kinds: Sequence[str]) -> list[list[str]]:
    """Return the transactions of each strongly connected component, single ones apart (Tarjan)."""
    number: dict[_Vertex, int] = {}
    low: dict[_Vertex, int] = {}
    stack: list[_Vertex] = []
    on_stack: set[_Vertex] = set()
    knots: list[list[str]] = []

    def enter(node: _Vertex) -> tuple[_Vertex, Iterator[_Vertex]]:
        number[node] = low[node] = len(number)
        stack.append(node)
        on_stack.add(node)
        return node, iter(graph.next(node, kinds))

    for root in log.committed:
        # An explicit stack of calls: a history is deeper than Python's recursion may be.
        calls = [enter(root.id)] if root.id not in number else []
        while calls:
            node, others = calls[-1]
            for other in others:
                if other not in number:
                    calls.append(enter(other))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == number[node]:
                    knot = _pop_to(stack, on_stack, node)
                    if len(knot) > 1:
                        knots.append(sorted(n for n in knot if isinstance(n, str)))
    return knots


def _pop_to(stack: list[_Vertex], on_stack: set[_Vertex], node: _Vertex) -> list[_Vertex]:
    popped = [stack.pop()]
    while popped[-1] != node:
        popped.append(stack.pop())
    on_stack.difference_update(popped)
    return popped
