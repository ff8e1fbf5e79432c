"""Placing: which members hold a copy of which partition, with as few new copies as possible.

Begins with the copies that stay, which may leave holes in rows, and members above or below their
quota.  Ends with full rows and every member at its quota, in five steps:

1. if rows have become shorter, members below their quota take back places that they had;
2. a hole goes to a member below its quota, in the order of rendezvous hashing;
3. if none of those may take it, to another one, and a *chain* ends at one below its quota: each
   member of a chain takes, in some row, the place of the one before it;
4. members below their quota take over from members above theirs, row by row;
5. what is left goes along chains.

A place costs one if its new member did not hold it before, and gives one back if it leaves a
member that did not.  Each step takes the cheapest way there is, which makes them the successive
shortest paths of a minimum-cost flow (Ahuja, Magnanti and Orlin, "Network Flows", 1993, chapter 9):
no other way has fewer new copies, unless rows become shorter or there are zones.  Zones may cut a
chain short, too: what is then left is tried again, ``CHAINS_PER_COPY`` times at most.

Members and zones are numbers.  Left out: who is primary, and replica indexes (``roles``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

CHAINS_PER_COPY = 4

Scores = Callable[[int], Sequence[int]]
"""The scores of all members for a partition, or of all partitions for a member."""

_NEVER = 1 << 62


def ranked(scores: Sequence[int]) -> list[int]:
    """Return the numbers of the scores, the highest score first, and of equal ones the lowest."""
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


class Placing:
    """Who holds which partition: ``rows`` has the members of each one, in the order they came.

    ``held`` are the members of each row so far, ``kept`` those of them that stay to begin with,
    ``copies`` is how many a row has to have, and ``limit`` how many of them may be in one zone.
    """

    def __init__(
        self,
        held: Sequence[Iterable[int]],
        kept: Sequence[Iterable[int]],
        quotas: Sequence[int],
        zones: Sequence[int],
        *,
        copies: int,
        limit: int,
    ) -> None:
        self.rows = [[*row] for row in kept]
        self._held = [frozenset(row) for row in held]
        self._zones = zones
        self._copies = copies
        self._limit = limit
        members = range(len(zones))
        self._rows_of: list[set[int]] = [set() for _ in members]
        self._added: list[set[int]] = [set() for _ in members]  # rows that have it and had not
        self._dropped: list[set[int]] = [set() for _ in members]  # rows that had it and have not
        self._full: list[set[int]] = [set() for _ in range(max(zones) + 1)]  # rows, by zone
        for number, row in enumerate(self.rows):
            for member in row:
                self._rows_of[member].add(number)
                self._note_zone(number, zones[member])
            for member in self._held[number].difference(row):
                self._dropped[member].add(number)
        self._least = 1  # what the last chain cost: the cheapest ways are taken first
        self._quotas = [*quotas]
        # How many copies a member is below its quota; negative above it.
        self._lack = [quota - len(rows) for quota, rows in zip(quotas, self._rows_of, strict=True)]

    def complete(self, of_partition: Scores, of_member: Scores) -> None:
        """Fill all rows, and bring all members to their quotas; scores say who comes first."""
        self._take_back()
        self._fill(of_partition)
        self._fill_the_rest()
        self._shift(of_member)
        self._shift_the_rest()

    # -------------------------------------------------------------- 1: what was held before

    def _take_back(self) -> None:
        for member in self._below():
            for number in sorted(self._dropped[member]):
                if self._lack[member]:
                    self._take_over(number, member)

    # -------------------------------------------------------------- 2 and 3: holes

    def _fill(self, scores: Scores) -> None:
        waiting = [number for number, row in enumerate(self.rows) if len(row) < self._copies]
        in_zone = [0] * len(self._full)
        for member in self._below():
            in_zone[self._zones[member]] += self._lack[member]
        for left, number in zip(range(len(waiting), 0, -1), waiting, strict=True):
            row = self.rows[number]
            order = ranked(scores(number))
            # Who has to be in every row from here on, by itself or for its zone, comes first.
            if max(self._lack) >= left or (len(in_zone) > 1 and max(in_zone) >= left * self._limit):
                order.sort(
                    key=lambda member: (
                        self._lack[member] < left,
                        in_zone[self._zones[member]] < left * self._limit,
                    )
                )
            for member in order:
                if self._lack[member] > 0 and self._fits(number, member):
                    self._add(number, member)
                    in_zone[self._zones[member]] -= 1
                    if len(row) == self._copies:
                        break

    def _fill_the_rest(self) -> None:
        for number, row in enumerate(self.rows):
            while len(row) < self._copies:
                members = range(len(self._lack))
                chain = self._chain({m: 1 for m in members if self._fits(number, m)})
                self._add(number, chain[0])
                self._pass_on(chain)

    # -------------------------------------------------------------- 4 and 5: surplus

    def _shift(self, scores: Scores) -> None:
        for member in self._below():
            above = [self._rows_of[other] for other in self._above()]
            score = scores(member)
            rows = set().union(*above) - self._rows_of[member]
            for number in sorted(rows, key=score.__getitem__, reverse=True):
                if not self._lack[member]:
                    break
                self._take_over(number, member)

    def _take_over(self, number: int, member: int) -> None:
        above = [
            other
            for other in self.rows[number]
            if self._lack[other] < 0 and self._fits(number, member, other)
        ]
        if above:
            most = min(self._lack[other] for other in above)
            self._swap(number, min(o for o in above if self._lack[o] == most), member)

    def _shift_the_rest(self) -> None:
        surplus = -sum(self._lack[member] for member in self._above())
        for _ in range(CHAINS_PER_COPY * surplus):
            above = self._above()
            if not above:
                break
            self._pass_on(self._chain(dict.fromkeys(above, 0)))

    # -------------------------------------------------------------- chains

    def _chain(self, begin: dict[int, int]) -> list[int]:
        """Return the cheapest chain, from one of ``begin`` (member -> cost) to one below its quota.

        A queue of members that have become cheaper (Bellman and Ford): it ends, since no circle of
        places costs less than nothing.  A chain that costs no more than the last one is taken at
        once.
        """
        below = self._below()
        everybody = range(len(self._lack))
        cost, before = dict(begin), dict[int, int]()
        # Most chains are short, so their end is looked for first.
        waiting = deque([(member, others) for others in (below, everybody) for member in begin])
        while waiting and all(cost.get(member, _NEVER) > self._least for member in below):
            member, others = waiting.popleft()
            for other in others:
                price = cost[member] + self._price(member, other)
                if price < cost.get(other, _NEVER):
                    cost[other] = price
                    before[other] = member
                    waiting.append((other, everybody))
        chain = [min(below, key=lambda member: cost.get(member, _NEVER))]
        self._least = cost[chain[0]]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        return chain[::-1]

    def _price(self, member: int, other: int) -> int:
        """Return what it costs that ``other`` takes a place of ``member``; ``_NEVER`` if none."""
        if self._may_exchange(member, other):
            return 0
        added, dropped = self._added[member], self._dropped[other]
        rows = self._rows_of[member]
        if self._open(added & dropped, member, other):
            return -1
        if self._open(added, member, other) or self._open(rows & dropped, member, other):
            return 0
        return 1 if any(self._fits(number, other, member) for number in rows) else _NEVER

    def _pass_on(self, chain: list[int]) -> None:
        """Let each member of a chain take a place of the one before it, the last one first.

        If zones leave no such place any more, what was done so far stays as it is.
        """
        for member, other in reversed([*pairwise(chain)]):
            if self._may_exchange(member, other):
                self._exchange_quotas(member, other)
            else:
                added, dropped = self._added[member], self._dropped[other]
                held = self._rows_of[member]
                for rows in (added & dropped, added, held & dropped, held):
                    if found := self._open(rows, member, other):
                        self._swap(min(found), member, other)
                        break
                else:
                    return

    def _may_exchange(self, member: int, other: int) -> bool:
        """Whether a member may swap its quota for the larger one of another."""
        larger = self._quotas[other] > self._quotas[member]
        return larger and self._zones[other] == self._zones[member]

    def _open(self, rows: set[int], member: int, other: int) -> set[int]:
        """Return those of a member's rows in which another one may take its place."""
        rows = rows - self._rows_of[other]
        zone = self._zones[other]
        return rows if zone == self._zones[member] else rows - self._full[zone]

    # -------------------------------------------------------------- one place

    def _below(self) -> list[int]:
        return [member for member, lack in enumerate(self._lack) if lack > 0]

    def _above(self) -> list[int]:
        return [member for member, lack in enumerate(self._lack) if lack < 0]

    def _fits(self, number: int, member: int, leaving: int | None = None) -> bool:
        """Whether a row may take a member: it is not there, and its zone has room."""
        row = self.rows[number]
        if member in row:
            return False
        zone = self._zones[member]
        same = leaving is not None and self._zones[leaving] == zone
        return same or number not in self._full[zone]

    def _swap(self, number: int, member: int, other: int) -> None:
        self._remove(number, member)
        self._add(number, other)

    def _exchange_quotas(self, member: int, other: int) -> None:
        more = self._quotas[other] - self._quotas[member]
        for gains, quota in ((member, more), (other, -more)):
            self._quotas[gains] += quota
            self._lack[gains] += quota

    def _add(self, number: int, member: int) -> None:
        self.rows[number].append(member)
        self._rows_of[member].add(number)
        self._lack[member] -= 1
        self._note_zone(number, self._zones[member])
        if member in self._held[number]:
            self._dropped[member].discard(number)
        else:
            self._added[member].add(number)

    def _remove(self, number: int, member: int) -> None:
        self.rows[number].remove(member)
        self._rows_of[member].discard(number)
        self._lack[member] += 1
        self._full[self._zones[member]].discard(number)
        if member in self._held[number]:
            self._dropped[member].add(number)
        else:
            self._added[member].discard(number)

    def _note_zone(self, number: int, zone: int) -> None:
        """Remember whether a row may take another member of a zone."""
        if sum(self._zones[member] == zone for member in self.rows[number]) >= self._limit:
            self._full[zone].add(number)
