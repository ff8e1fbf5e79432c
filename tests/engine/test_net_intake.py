"""Room for long frames: who waits, in which order, and who has to give way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tidelog.engine.net.frames import FrameError
from tidelog.engine.net.intake import WAIT_S_MAX, Intake


class Holding:
    """A connection that holds room."""

    def __init__(self) -> None:
        self.reason: Exception | None = None

    def end(self, reason: Exception | None = None) -> None:
        self.reason = reason


def run(scenario: Callable[[Intake, trio.Nursery], Awaitable[None]]) -> None:
    async def lived() -> None:
        async with trio.open_nursery() as nursery:
            await scenario(Intake(100), nursery)
            nursery.cancel_scope.cancel()

    trio.run(lived, clock=MockClock(autojump_threshold=0))


def test_who_came_first_holds_first_and_a_short_frame_does_not_overtake_a_long_one() -> None:
    async def scenario(intake: Intake, nursery: trio.Nursery) -> None:
        a, b, c, d = (Holding() for _ in range(4))
        held = []

        async def hold(name: str, holder: Holding, size: int) -> None:
            await intake.hold(holder, size)
            held.append(name)

        await hold("a", a, 60)
        await hold("b", b, 30)
        for name, holder, size in (("c", c, 80), ("d", d, 5)):
            nursery.start_soon(hold, name, holder, size)
            await wait_all_tasks_blocked()
        assert held == ["a", "b"]
        intake.give_back(a)
        await wait_all_tasks_blocked()
        assert held == ["a", "b"], "90 are wanted, and 70 free"
        intake.give_back(b)
        await wait_all_tasks_blocked()
        assert held == ["a", "b", "c", "d"]
        assert repr(intake) == "<Intake of 2 connections, 15 bytes free>"

    run(scenario)


def test_a_frame_takes_the_place_of_the_one_before() -> None:
    async def scenario(intake: Intake, _: trio.Nursery) -> None:
        a = Holding()
        for size in (100, 100, 70, 0, 40):
            await intake.hold(a, size)
        assert repr(intake) == "<Intake of 1 connections, 60 bytes free>"
        for _twice in range(2):
            intake.give_back(a)
        assert repr(intake) == "<Intake of 0 connections, 100 bytes free>"

    run(scenario)


def test_who_holds_for_longest_gives_way_if_nothing_is_given_back() -> None:
    async def scenario(intake: Intake, nursery: trio.Nursery) -> None:
        a, b, c, d = (Holding() for _ in range(4))
        await intake.hold(a, 50)
        await intake.hold(b, 30)
        await intake.hold(c, 20)
        began = trio.current_time()
        nursery.start_soon(intake.hold, d, 70)
        await trio.sleep(WAIT_S_MAX / 2)
        intake.give_back(c)
        await trio.sleep(WAIT_S_MAX - 1)
        assert (a.reason, b.reason) == (None, None), "somebody has just given room back"
        await intake.hold(c, 10)
        assert trio.current_time() == began + WAIT_S_MAX * 2.5, "behind d, which had to wait, too"
        assert isinstance(a.reason, FrameError)
        assert isinstance(b.reason, FrameError)
        assert (c.reason, d.reason) == (None, None)
        assert repr(intake) == "<Intake of 2 connections, 20 bytes free>"

    run(scenario)


def test_who_waits_no_more_keeps_nobody_waiting() -> None:
    async def scenario(intake: Intake, nursery: trio.Nursery) -> None:
        a, b, c = (Holding() for _ in range(3))
        await intake.hold(a, 50)
        with trio.move_on_after(1):
            await intake.hold(b, 60)
        await intake.hold(c, 50)
        assert repr(intake) == "<Intake of 2 connections, 0 bytes free>"

    run(scenario)
