"""Roles: which member of each row is its primary, and which replica index each of them gets.

A primary stays primary if it can.  If members hold unequal numbers of primaries, a role is
handed on inside a row, first in rows that change anyway: there it costs no copy and no cycle.

Members and rows are numbers.  A row as it was is a list by replica index, None for an empty place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from typing import TypeAlias

Places: TypeAlias = list[int | None]


class Roles:
    """The primary of each row, given who was where before, and who holds a copy from now on."""

    def __init__(
        self, before: Sequence[Places], rows: Sequence[Sequence[int]], members: int
    ) -> None:
        self.primaries: list[int] = []
        self._before = before
        self._rows = rows
        self._rows_of: list[set[int]] = [set() for _ in range(members)]
        self._primary_of: list[set[int]] = [set() for _ in range(members)]
        for number, row in enumerate(rows):
            for member in row:
                self._rows_of[member].add(number)
            primary = self._first(before[number], row)
            self.primaries.append(primary)
            self._primary_of[primary].add(number)

    def _first(self, places: Places, row: Sequence[int]) -> int:
        """Return the primary of a row before roles are handed on."""
        if places[0] is not None and places[0] in row:
            return places[0]
        # A member without a copy is primary only if nobody has one.
        stay = [member for member in places if member is not None and member in row]
        return min(stay or row, key=lambda member: len(self._primary_of[member]))

    # -------------------------------------------------------------- equal numbers of primaries

    def balance(self) -> None:
        """Hand on roles until no member has two primaries more than another one."""
        changing = {
            number
            for number, (places, row) in enumerate(zip(self._before, self._rows, strict=True))
            if not {*row} <= {*places}
        }
        for allowed in (changing, set(range(len(self._rows)))):
            while chain := self._chain(allowed):
                for number, member in chain:
                    self._primary_of[self.primaries[number]].discard(number)
                    self._primary_of[member].add(number)
                    self.primaries[number] = member

    def _chain(self, allowed: AbstractSet[int]) -> list[tuple[int, int]]:
        """Return rows with their next primaries, which make the numbers of primaries more equal.

        They are a shortest chain from a member with too many to one with too few, each of whom is
        handed a row of the one before it.  Empty if there is no such chain.
        """
        begin, end = self._too_many_and_too_few()
        handed: dict[int, tuple[int, int] | None] = dict.fromkeys(begin)
        while begin and end:
            if found := next(self._hand_overs(begin, end, allowed), None):
                handed[found[2]] = found[:2]
                return self._back_from(found[2], handed)
            reached = []
            others = [m for m in range(len(self._rows_of)) if m not in handed]
            for member, number, other in self._hand_overs(begin, others, allowed):
                if other not in handed:
                    handed[other] = member, number
                    reached.append(other)
            begin = reached
        return []

    def _too_many_and_too_few(self) -> tuple[list[int], list[int]]:
        counts = [len(rows) for rows in self._primary_of]
        fewest, over = divmod(len(self._rows), len(counts))
        most = fewest + bool(over)
        if max(counts) > most:
            fewest = most
        else:
            most = fewest
        many = [member for member, count in enumerate(counts) if count > most]
        few = [member for member, count in enumerate(counts) if count < fewest]
        return many, few

    def _hand_overs(
        self, members: Iterable[int], others: Sequence[int], allowed: AbstractSet[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (member, row, other) for each other member that may take over a role from one."""
        for member in members:
            rows = self._primary_of[member] & allowed
            for other in others:
                if common := rows & self._rows_of[other]:
                    yield member, min(common), other

    @staticmethod
    def _back_from(member: int, handed: dict[int, tuple[int, int] | None]) -> list[tuple[int, int]]:
        chain = []
        while step := handed[member]:
            chain.append((step[1], member))
            member = step[0]
        return chain

    # -------------------------------------------------------------- replica indexes

    def laid_out(self) -> list[list[int]]:
        """Return all rows by replica index."""
        return [*map(_laid_out, self._before, self._rows, self.primaries)]


def _laid_out(before: Places, row: Sequence[int], primary: int) -> list[int]:
    """Return a row by replica index; who stays keeps its place, except if the primary changes.

    The old primary goes to a place that becomes free, so that the two do not just change places.
    Who stood beyond the end of the row moves up.
    """
    stay = [member if member in row else None for member in before]
    places = (stay + [None] * len(row))[: len(row)]
    if places[0] != primary:
        free = [index for index, member in enumerate(places) if member is None and index]
        if primary in places:
            free.append(places.index(primary))
            places[free[-1]] = None
        if places[0] is not None:
            places[free[0]] = places[0]
        places[0] = primary
    late = [member for member in stay[len(row) :] if member is not None]
    moving = [member for member in dict.fromkeys([*late, *row]) if member not in places]
    return [moving.pop(0) if member is None else member for member in places]
