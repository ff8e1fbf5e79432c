"""Requests of clients are carried out in turns, with rounds of the loop between."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing

from tidelog.engine.net.turns import TURN_S, RequestTurns


class Loop:
    """Tasks that carry requests out, and one that counts the rounds of the loop meanwhile."""

    def __init__(self) -> None:
        self.turns = RequestTurns()
        self.clock = trio.testing.MockClock()
        self.rounds = 0
        self.done: list[tuple[str, int]] = []
        """Who carried a request out, and in which round."""

    async def carry_out(self, name: str, requests: int, seconds: float) -> None:
        while requests:
            async with self.turns:
                while requests:
                    self.clock.jump(seconds)
                    self.done.append((name, self.rounds))
                    requests -= 1
                    if self.turns.is_over():
                        break

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[trio.Nursery]:
        async def count() -> None:
            while True:
                self.rounds += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as around:
            around.start_soon(count)
            async with trio.open_nursery() as nursery:
                yield nursery
            around.cancel_scope.cancel()

    def run(self, *clients: tuple[int, float]) -> list[int]:
        """Let clients have so many requests of so many seconds each; return how many each round
        of the loop has seen carried out."""

        async def main() -> None:
            async with self.counted() as nursery:
                for number, (requests, seconds) in enumerate(clients):
                    nursery.start_soon(self.carry_out, str(number), requests, seconds)

        trio.run(main, clock=self.clock)
        per_round: dict[int, int] = {}
        for _, turn in self.done:
            per_round[turn] = per_round.get(turn, 0) + 1
        return list(per_round.values())


@pytest.mark.parametrize("clients", [1, 40])
def test_requests_of_long_turns_do_not_follow_each_other_without_a_round_of_the_loop(
    clients: int,
) -> None:
    """400 scans at once, 62 ms each, silenced a member so long that the others let it go."""
    per_round = Loop().run(*[(40 // clients, 6 * TURN_S)] * clients)
    assert max(per_round) <= 2, "two, as the loop shuffles what is to run in a round"
    assert len(per_round) >= 20


@pytest.mark.parametrize("clients", [1, 50])
def test_quick_requests_share_a_turn_whoever_they_are_of(clients: int) -> None:
    per_round = Loop().run(*[(100 // clients, TURN_S / 8)] * clients)
    assert max(per_round) <= 16
    assert len(per_round) <= 25


def test_requests_that_take_no_time_are_carried_out_in_one_round() -> None:
    loop = Loop()
    loop.run((1000, 0.0), (1000, 0.0))
    assert len({turn for name, turn in loop.done if name == "0"}) == 1


@pytest.mark.parametrize("seconds", [TURN_S / 20, TURN_S, 6 * TURN_S])
def test_nobody_waits_for_many_more_requests_than_there_are_others(seconds: float) -> None:
    """Who was woken while another one had begun waited behind all that had come since."""
    loop, clients = Loop(), 60
    loop.run(*[(1, seconds)] * 10 * clients)
    loop.done.clear()
    loop.run(*[(5, seconds)] * clients)
    names = [name for name, _ in loop.done]
    places = {name: [at for at, one in enumerate(names) if one == name] for name in set(names)}
    waits = [b - a for some in places.values() for a, b in pairwise(some)]
    assert max(waits) <= 1.5 * clients


def test_who_is_cancelled_in_its_turn_lets_the_next_one_have_it() -> None:
    loop = Loop()

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await loop.carry_out("cancelled", 1, TURN_S)
        assert scope.cancelled_caught
        await loop.carry_out("next", 1, TURN_S)

    trio.run(main, clock=loop.clock)
    assert [name for name, _ in loop.done] == ["cancelled", "next"]


def test_who_is_cancelled_while_it_waits_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who came before it had gone on waited for it, and all who came later behind that one."""

    async def main(loop: Loop) -> None:
        scope = trio.CancelScope()

        async def cancelled() -> None:
            with scope:
                await loop.carry_out("cancelled", 1, 0.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.carry_out, "first", 1, 2 * TURN_S)
            nursery.start_soon(cancelled)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(loop.carry_out, "next", 1, 0.0)
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(loop.carry_out, "last", 1, 0.0)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    for seed in range(20):  # which shuffle what runs in a round
        monkeypatch.setattr("trio._core._run._r", random.Random(seed))
        loop = Loop()
        trio.run(main, loop, clock=loop.clock)
        assert {"first", "next", "last"} <= {name for name, _ in loop.done}


async def test_a_turn_ends_by_the_clock_that_it_was_given() -> None:
    now = 5.0
    turns = RequestTurns(lambda: now)
    async with turns:
        assert not turns.is_over()
        now += TURN_S
        assert turns.is_over()
