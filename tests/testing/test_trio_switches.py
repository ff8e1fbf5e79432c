"""Trio's private switches: what they do, that they are put back, and who misses one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from trio._core import _run, _thread_cache

from tidelog import testing
from tidelog.testing.trio_switches import check_switches, end_shields, repeatable


def order_of(seed: str) -> list[int]:
    """The order in which thirty tasks come by, ten times."""
    order: list[int] = []

    async def task(number: int) -> None:
        for _ in range(10):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(task, number)

    with repeatable(seed):
        trio.run(main)
    return order


def test_the_seed_decides_the_order_of_tasks() -> None:
    assert order_of("7") == order_of("7") != order_of("8")


def test_tasks_are_sorted_before_they_are_shuffled() -> None:
    """Woken out of a set, tasks come in the order of their addresses: nothing of it may be left."""
    orders = []
    for turned in (False, True):
        order: list[int] = []

        async def task(number: int, gate: trio.Event, order: list[int]) -> None:
            await gate.wait()
            order.append(number)

        async def main(turned: bool, order: list[int]) -> None:
            gate = trio.Event()
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(task, number, gate, order)
                await trio.testing.wait_all_tasks_blocked()
                for woken in sorted(gate._tasks, key=lambda task: task._counter, reverse=turned):
                    gate._tasks.discard(woken)
                    trio.lowlevel.reschedule(woken)

        with repeatable("1"):
            trio.run(main, turned, order)
        orders.append(order)
    assert orders[0] == orders[1]


@pytest.mark.parametrize("before", [False, True])
def test_every_switch_is_put_back(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", before)
    state = _run._r.getstate()
    with suppress(ZeroDivisionError), repeatable("1"):
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING is True
        raise ZeroDivisionError
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is before
    assert _run._r.getstate() == state


def test_trio_gives_out_no_thread_that_a_virtual_clock_would_not_wait_for() -> None:
    async def main() -> int:
        return await trio.to_thread.run_sync(int, "7")

    # The clock jumped over the work of the thread, as far as that was slow.
    with repeatable("1"), pytest.raises(RuntimeError, match="a simulated world has no threads"):
        trio.run(main)
    assert trio.run(main) == 7


def test_another_thread_has_trio_as_ever() -> None:
    async def main() -> int:
        return await trio.to_thread.run_sync(int, "7")

    with repeatable("1"), ThreadPoolExecutor(1) as beside:
        assert beside.submit(trio.run, main).result() == 7


def remove(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.delattr(_run, name)


def replace(name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(_run, name, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (remove("_ALLOW_DETERMINISTIC_SCHEDULING"), "_ALLOW_DETERMINISTIC_SCHEDULING"),
        (replace("_ALLOW_DETERMINISTIC_SCHEDULING", "yes"), "_ALLOW_DETERMINISTIC_SCHEDULING"),
        (remove("_r"), r"_run\._r"),
        (replace("_r", object()), r"_run\._r"),
        (replace("unrolled_run", lambda: None), "_ALLOW_DETERMINISTIC_SCHEDULING, .*_r"),
        (remove("unrolled_run"), "_ALLOW_DETERMINISTIC_SCHEDULING, .*_r"),
        (replace("CancelStatus", object), r"_children, .*_scope"),
        (lambda patch: patch.setattr(trio, "CancelScope", object), "_cancel_status"),
        (lambda patch: patch.delattr(_thread_cache, "start_thread_soon"), "THREAD_CACHE"),
        (lambda patch: patch.setattr(_thread_cache, "start_thread_soon", order_of), "THREAD_CACHE"),
    ],
)
def test_a_switch_that_has_gone_is_named(
    change: Callable[[pytest.MonkeyPatch], None], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_switches()
    change(monkeypatch)
    with pytest.raises(RuntimeError, match=rf"trio \d.* has no .*{named}.* any more"):
        repeatable("1").__enter__()


async def test_shields_at_any_depth_end_where_a_kill_wants_them_to() -> None:
    ended: list[str] = []

    async def shielded(name: str) -> None:
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    with trio.CancelScope(shield=True):
                        await trio.sleep_forever()
        finally:
            ended.append(name)

    with trio.CancelScope() as killed:
        end_shields(trio.CancelScope())  # nobody is in it yet
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shielded, "one")
            nursery.start_soon(shielded, "other")
            await trio.testing.wait_all_tasks_blocked()
            killed.cancel()
            end_shields(killed)
    assert sorted(ended) == ["one", "other"]
    assert killed.cancelled_caught


async def test_a_shield_outside_of_what_is_killed_stays() -> None:
    with trio.CancelScope(shield=True) as outer:
        with trio.CancelScope() as killed:
            killed.cancel()
            end_shields(killed)
            await trio.lowlevel.checkpoint()
        assert outer.shield


def test_one_module_only_names_what_is_private_in_trio() -> None:
    private = {
        path.name
        for path in Path(testing.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("trio.")
        and any(part.startswith("_") for part in (node.module or "").split("."))
    }
    assert private == {"trio_switches.py"}
