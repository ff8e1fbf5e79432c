"""Worlds of several nodes: how they live and die, and what their environment does."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from tidelog.engine.store.handles import open_handles
from tidelog.engine.system.blocking import WORKERS_MAX
from tidelog.testing import SimulatedCrash, World, open_with
from tidelog.testing.media import CRASH_OUTCOMES
from tidelog.testing.node import Node
from tidelog.testing.points import Points
from tidelog.testing.process import STEPS_TO_END_MAX

Program = Callable[[Node], Awaitable[object]]
SEEDS = range(5)


def live(
    program: Program,
    scenario: Callable[[Node], Awaitable[object]] | None = None,
    *,
    seed: int = 1,
    kv: str = "memory",
    seconds_max: float = 3600.0,
) -> Node:
    """Start a program on the one node of a world, and do a scenario with it, or see it end."""
    world = World(seed, kv=kv)
    node = world.add("one", program)

    async def started() -> None:
        node.start()
        await (node.wait_ended() if scenario is None else scenario(node))

    world.run(started, seconds_max=seconds_max)
    return node


async def idle(_node: Node) -> None:
    await trio.sleep_forever()


def write(node: Node, name: str, data: bytes, *, sync: bool = True) -> None:
    folder = node.environment.disk.directory("/")
    file = folder.create(name)
    file.write(0, data)
    if sync:
        file.sync()
        folder.sync()


# ------------------------------------------------------------------ time and order


def test_time_jumps_to_the_next_deadline_and_nobody_waits() -> None:
    async def program(node: Node) -> None:
        clocks = node.environment.monotonic, node.environment.boottime, node.environment.clock
        before = [clock() for clock in clocks]
        await trio.sleep(1_000_000)
        passed = [clock() - was for clock, was in zip(clocks, before, strict=True)]
        assert passed[:2] == pytest.approx([1_000_000] * 2, rel=0.001)
        assert passed[2] == pytest.approx(1e12, rel=0.001)
        assert passed[0] != 1_000_000

    live(program, seconds_max=2_000_000)


def trace_of(seed: int) -> str:
    async def chat(node: Node) -> None:
        environment = node.environment
        environment.reached(f"id {environment.new_id().hex()} {environment.random.random()}")
        listener = await environment.network.listen((node.name, 7000))
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(environment.network.connect, (name, 7000))
            for _ in range(3):
                await (await listener.accept()).send(b"hello")

    world = World(seed)
    for name in ("a", "b", "c"):
        world.add(name, chat)

    async def scenario() -> None:
        for node in world.nodes.values():
            node.start()
        await trio.sleep(1)

    world.run(scenario)
    return world.trace.hash


def test_the_same_seed_is_the_same_world_and_another_one_is_another() -> None:
    assert len({trace_of(seed) for seed in (1, 2, 3, 1, 2, 3)}) == 3


def test_a_world_without_anything_to_do_ends_at_its_limit() -> None:
    with pytest.raises(trio.TooSlowError):
        live(idle, lambda _: trio.sleep_forever(), seconds_max=60)


def test_what_a_scenario_returns_comes_back() -> None:
    async def scenario() -> int:
        return 7

    assert World(1).run(scenario) == 7


def test_background_work_runs_when_it_is_due_or_was_woken_and_ends_with_its_process() -> None:
    ran: list[tuple[int, float]] = []

    async def program(node: Node) -> None:
        start, begun = node.starts, node.environment.monotonic()

        def work() -> None:
            ran.append((start, round(node.environment.monotonic() - begun, 1)))

        task = node.environment.background("work", 10.0, work)
        await trio.sleep(25)
        task.wake()
        task.wake()
        await trio.sleep(5)
        task.stop()
        await trio.sleep(30)
        node.environment.background("again", 10.0, work)
        await trio.sleep_forever()

    async def scenario(node: Node) -> None:
        await trio.sleep(75)
        assert ran == [(1, 10.0), (1, 20.0), (1, 25.0), (1, 70.0)]
        await node.restart()
        await trio.sleep(12)
        assert ran[4:] == [(2, 10.0)]

    live(program, scenario)


def test_who_pauses_in_blocking_work_lets_time_pass_for_all() -> None:
    async def program(node: Node) -> None:
        environment, ran = node.environment, list[int]()
        environment.background("work", 1.0, lambda: ran.append(1))
        before = environment.monotonic()
        await environment.run("read", lambda: environment.wait(2.5))
        assert 2.5 <= environment.monotonic() - before < 3.5
        assert len(ran) >= 2

    live(program)


# ------------------------------------------------------------------ blocking work


def test_work_takes_time_and_gives_its_result_or_its_error() -> None:
    async def program(node: Node) -> None:
        run, now = node.environment.run, node.environment.monotonic
        before = now()
        worked_at = await run("read", now)
        assert before < worked_at < now()
        with pytest.raises(ZeroDivisionError):
            await run("read", lambda: 1 // 0)

    live(program)


@pytest.mark.parametrize(("kind", "limit"), [("sync", 1), ("read", WORKERS_MAX)])
def test_as_much_work_runs_at_a_time_as_in_production(kind: str, limit: int) -> None:
    order: list[int] = []

    async def program(node: Node) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for number in range(2 * WORKERS_MAX):
                    nursery.start_soon(
                        node.environment.run, kind, lambda number=number: order.append(number)
                    )
                    await trio.testing.wait_all_tasks_blocked()
                scope.cancel()  # what was begun is waited for, what was not is not done

    live(program)
    assert sorted(order) == list(range(limit))


def test_nothing_is_done_at_a_disk_that_hangs_before_it_answers_and_a_kill_ends_that() -> None:
    done: list[float] = []

    async def program(node: Node) -> None:
        run, now = node.environment.run, node.environment.monotonic
        begun, number = now(), node.starts
        if number == 1:
            node.hang_disk(5)
        for _ in range(2 if number == 1 else 1):
            await run("sync", lambda: done.append(now() - begun))
        node.hang_disk(1000)
        if number == 1:
            await run("read", lambda: done.append(-1.0))

    async def scenario(node: Node) -> None:
        node.start()
        await trio.sleep(60)
        await node.restart()
        await node.wait_ended()

    world = World(1)
    node = world.add("one", program)
    world.run(lambda: scenario(node))
    first, second, other = done
    assert 4.9 < first < second < 6
    assert other < 1, "the next process finds a disk that answers"


def test_syncs_run_in_the_order_of_the_calls() -> None:
    order: list[int] = []

    async def program(node: Node) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(
                    node.environment.run, "sync", lambda number=number: order.append(number)
                )
                await trio.testing.wait_all_tasks_blocked()

    live(program)
    assert order == list(range(9))


def test_a_task_that_is_cancelled_in_its_work_gets_the_result_first() -> None:
    results: list[str] = []

    async def program(node: Node) -> None:
        with trio.move_on_after(0.000001) as scope:
            results.append(await node.environment.run("read", lambda: "done"))
            await trio.lowlevel.checkpoint()
            results.append("never")
        assert scope.cancelled_caught
        with trio.move_on_after(0) as scope:
            await node.environment.run("read", lambda: results.append("never"))
        assert scope.cancelled_caught

    live(program)
    assert results == ["done"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_a_process_ends_before_inside_or_after_its_work(moment: str, seed: int) -> None:
    done: list[str] = []

    async def program(node: Node) -> None:
        await node.environment.run("read", lambda: done.append("read"))
        await node.environment.run("sync", lambda: write(node, f"file{node.starts}", b"x" * 5000))
        done.append("returned")

    async def scenario(node: Node) -> None:
        await node.wait_ended()
        assert not node.running
        possible = {"before": [0], "inside": [0, 1], "after": [1]}[moment]
        assert len(node.disk.paths()) in possible
        assert "returned" not in done
        await node.restart()
        await node.wait_ended()
        assert done[-1] == "returned"

    world = World(seed)
    node = world.add("one", program)
    node.kill_at(f"{moment} sync")

    async def started() -> None:
        node.start()
        await scenario(node)

    world.run(started)
    assert node.points.planned == {}


def test_an_end_inside_of_work_comes_at_any_of_its_operations() -> None:
    done = set()

    async def program(node: Node) -> None:
        node.kill_at("inside sync")
        disk = node.disk
        try:
            await node.environment.run("sync", lambda: write(node, "file", b"x"))
        finally:
            done.add(disk.operations)

    for seed in range(20):
        live(program, seed=seed)
    assert done == {1, 2, 3, 4}


def test_work_that_does_less_than_planned_ends_its_process_all_the_same() -> None:
    async def program(node: Node) -> None:
        node.kill_at("inside read")
        await node.environment.run("read", lambda: None)
        raise AssertionError("it goes on")

    assert not live(program).running


# ------------------------------------------------------------------ ends


def test_a_process_is_killed_at_the_nth_time_that_it_reaches_a_point() -> None:
    came: list[int] = []

    async def program(node: Node) -> None:
        for number in range(3):
            came.append(number)
            node.environment.reached("the middle")
            await trio.sleep(1)

    async def scenario(node: Node) -> None:
        node.kill_at("the middle", 5)
        await node.wait_ended()
        await node.restart()
        await node.wait_ended()

    assert live(program, scenario).points.reached["the middle"] == 5
    assert came == [0, 1, 2, 0, 1]


def test_a_plan_counts_from_when_it_was_made_and_comes_true_once() -> None:
    points = Points()
    assert not points.reach("a")
    points.plan("a", 2)
    assert [points.reach(name) for name in "abaa"] == [False, False, True, False]
    assert points.planned == {}
    points.plan("b", 3)
    points.reach("b")
    assert points.planned == {"b": 2}
    with pytest.raises(ValueError, match="from 1"):
        points.plan("b", 0)


def test_the_dead_are_not_heard_and_their_disk_does_not_change() -> None:
    told: list[str] = []

    async def program(node: Node) -> None:
        if node.starts > 1:
            return
        try:
            await trio.sleep_forever()
        finally:
            told.append("dying")
            with pytest.raises(SimulatedCrash):
                write(node, "last words", b"x")
            with pytest.raises(OSError, match="gone"), trio.CancelScope(shield=True):
                await node.environment.network.listen((node.name, 1))
            raise ZeroDivisionError

    async def scenario(node: Node) -> None:
        await trio.sleep(1)
        await node.restart()
        await node.wait_ended()
        assert node.disk.paths() == []

    live(program, scenario)
    assert "dying" in told


def test_a_shield_does_not_protect_from_a_kill() -> None:
    async def program(node: Node) -> None:
        with trio.CancelScope(shield=True):
            await node.environment.run("sync", lambda: None)
            await trio.sleep_forever()

    async def scenario(node: Node) -> None:
        await trio.sleep(0.0001)
        for _ in range(3):
            node.kill()
            node.kill()
            with trio.fail_after(0.0001):
                await node.wait_ended()
            await node.restart()
            await trio.sleep(5)

    assert live(program, scenario).starts == 4


def test_nor_does_a_shield_that_a_task_takes_up_as_it_ends() -> None:
    async def program(_node: Node) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    async def scenario(node: Node) -> None:
        await trio.sleep(1)
        node.kill()
        with trio.fail_after(1):
            await node.wait_ended()

    live(program, scenario)


def test_a_task_that_outlives_its_kill_is_an_error() -> None:
    async def program(_node: Node) -> None:
        for _ in range(3 * STEPS_TO_END_MAX):
            with suppress(trio.Cancelled):  # what nobody should write
                await trio.lowlevel.checkpoint()

    async def scenario(node: Node) -> None:
        await trio.lowlevel.checkpoint()
        node.kill()
        await trio.sleep_forever()

    with pytest.raises(RuntimeError, match="a task of one goes on though"):
        live(program, scenario)


@pytest.mark.parametrize("outcome", CRASH_OUTCOMES)
def test_the_disk_keeps_what_was_synced_and_the_outcome_says_what_else(outcome: str) -> None:
    async def program(node: Node) -> None:
        write(node, f"synced{node.starts}", b"x")
        write(node, f"unsynced{node.starts}", b"y", sync=False)
        await trio.sleep_forever()

    async def scenario(node: Node) -> None:
        for start in (1, 2):
            await trio.sleep(1)
            await node.restart(outcome)
            assert f"/synced{start}" in node.disk.paths()
            if outcome in ("kept", "lost"):
                assert (f"/unsynced{start}" in node.disk.paths()) == (outcome == "kept")

    live(program, scenario)


def test_a_power_cut_boots_the_machine_and_a_kill_does_not() -> None:
    async def scenario(node: Node) -> None:
        await trio.sleep(100)
        boottime = node.environment.boottime()
        assert boottime > 50
        await node.restart("kept")
        assert node.environment.boottime() >= boottime
        await node.restart("lost")
        assert node.environment.boottime() < 1

    live(idle, scenario)


def test_each_start_has_its_own_ids_chance_and_number() -> None:
    seen = []

    async def program(node: Node) -> None:
        environment = node.environment
        seen.append((environment.new_id(), environment.random.random(), environment.pid()))

    async def scenario(node: Node) -> None:
        await node.wait_ended()
        await node.restart()
        await node.wait_ended()

    live(program, scenario)
    assert all(one != other for one, other in zip(*seen, strict=True))


def test_a_planned_power_cut_of_the_disk_ends_the_process() -> None:
    async def program(node: Node) -> None:
        if node.starts > 1:
            return
        node.disk.crash_at(node.disk.operations + 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await node.environment.run("sync", lambda: write(node, "file", b"x"))

    async def scenario(node: Node) -> None:
        await node.wait_ended()
        await node.restart()

    assert live(program, scenario).starts == 2


def test_a_program_that_returns_has_ended_and_its_streams_are_closed() -> None:
    world = World(1)

    async def serve(node: Node) -> None:
        listener = await node.environment.network.listen((node.name, 1))
        await (await listener.accept()).send(b"bye")

    async def ask(node: Node) -> None:
        stream = await node.environment.network.connect(("server", 1))
        with suppress(ConnectionResetError):  # an end will do as well
            while await stream.receive():
                pass

    server, client = world.add("server", serve), world.add("client", ask)

    async def scenario() -> None:
        server.start()
        await trio.sleep(1)
        client.start()
        await server.wait_ended()
        await client.wait_ended()
        assert not server.running

    world.run(scenario)


# ------------------------------------------------------------------ mistakes


def test_what_goes_wrong_in_a_program_is_raised_with_the_seed_and_the_newest_events() -> None:
    async def program(node: Node) -> None:
        node.environment.reached("the brink")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        live(program, lambda _: trio.sleep_forever(), seed=77)
    (note,) = caught.value.__notes__
    assert "seed 77" in note
    assert "one reached the brink" in note


def test_what_goes_wrong_in_several_places_comes_together() -> None:
    async def program(_node: Node) -> None:
        async with trio.open_nursery() as nursery:
            for divisor in (0, 0):
                nursery.start_soon(trio.sleep, 1 // divisor if divisor else 0)
            try:
                await trio.sleep_forever()
            finally:
                raise ZeroDivisionError

    async def scenario(_node: Node) -> None:
        await trio.sleep(1)
        raise KeyError

    with pytest.raises(BaseExceptionGroup) as caught:
        live(program, scenario)
    assert caught.group_contains(ZeroDivisionError)
    assert caught.group_contains(KeyError)


def test_nodes_are_started_in_a_world_that_runs_one_process_at_a_time() -> None:
    world = World(1)
    node = world.add("one", idle)
    with pytest.raises(ValueError, match="'one' already"):
        world.add("one", idle)
    with pytest.raises(RuntimeError, match="while its world runs"):
        node.start()
    node.kill()

    async def scenario() -> None:
        await node.wait_ended()
        node.start()
        with pytest.raises(RuntimeError, match="has not ended"):
            node.start()
        with pytest.raises(ValueError, match="outcome"):
            node.kill("burnt")

    world.run(scenario)


@pytest.mark.parametrize("kv", ["memory", "lmdb"])
def test_a_world_leaves_no_open_store_and_no_scratch_file_behind(
    kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handles = set(open_handles)
    kept = []

    async def program(node: Node) -> None:
        db = open_with(node.environment, "/store", partitions=2)
        kept.append(db)
        db.map("numbers")[b"%d" % node.starts] = b"x"
        assert set(open_handles) == handles
        assert kv == "memory" or list(tmp_path.iterdir())
        await trio.sleep_forever()

    async def scenario(node: Node) -> None:
        for _ in range(2):
            await trio.sleep(1)
            await node.restart()
        await trio.sleep(1)

    live(program, scenario, kv=kv)
    assert len(kept) == 3
    assert list(tmp_path.iterdir()) == []
    kept.clear()
    gc.collect()
    assert set(open_handles) == handles
