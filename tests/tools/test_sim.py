"""``tidelog sim``: storms from the command line, in this process and in several."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tidelog.affinity.errors import UsageError
from tidelog.testing.storm_faults import drawn_faults, parsed_fault
from tidelog.testing.storms import StormOutcome, chosen_clients, run_storm
from tidelog.tools.sim import storming
from tidelog.tools.sim.storming import Shape, Verdict, judged, parsed_numbers

Run = Callable[..., Result]

FAILING = 15
"""A seed that finds the mistake below."""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that say of every commit in doubt that it did not happen."""
    from tidelog.engine.node.tx_history import TxHistory

    async def forgets(*_about: object) -> str:
        return "rolled_back"

    monkeypatch.setattr(TxHistory, "_outcome", forgets)


def test_seeds_that_pass_are_counted(run: Run) -> None:
    done = run("sim", "--seeds", "1-2")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "seeds: 2, failed: 0\n", "")


def test_several_processes_find_what_one_finds(run: Run) -> None:
    done = run("sim", "--seeds", "1,2,3", "--jobs", 2, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "v": 1, "type": "storms", "seeds": 3, "failed": 0, "failures": [],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
def test_a_failure_is_told_with_few_faults_and_the_command_that_shows_it_again(run: Run) -> None:
    done = run("sim", "--seeds", FAILING, "--jsonl")
    assert done.exit_code == 3
    failure, summary = map(json.loads, done.stdout.splitlines())
    assert summary == {"v": 1, "type": "storms", "seeds": 1, "failed": 1}
    assert failure["seed"] == FAILING
    assert re.search("not linearizable|was refused: it was acknowledged", failure["failure"])
    drawn = [str(fault) for fault in drawn_faults(FAILING, 3)]
    assert set(failure["faults"]) < set(drawn)
    for fault in failure["faults"]:
        fewer = [other for other in failure["faults"] if other != fault]
        assert run_storm(FAILING, faults=fewer).failure is None, "this one could be left out"

    again = run(*shlex.split(failure["command"])[1:])
    assert again.exit_code == 3
    lines = again.stdout.splitlines()
    assert lines[0].startswith(f"seed {FAILING}: {failure['failure'].splitlines()[0]}")
    assert [line for line in lines if line.startswith("  fault: ")] == [
        f"  fault: {fault}" for fault in failure["faults"]
    ]
    assert f"  again: {failure['command']}" in lines
    assert lines[-1] == "seeds: 1, failed: 1"


def test_a_failure_that_needs_one_client_and_no_fault_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tidelog.engine.node import reads

    genuine = reads.get

    def forgetful(*arguments: object) -> object:
        values, epochs, counters = genuine(*arguments)  # type: ignore[arg-type]
        return [None] * len(values), epochs, counters

    monkeypatch.setattr(reads, "get", forgetful)
    found = judged(1, Shape(3), ("9.000 reset n1 n2",))
    assert found.failure is not None
    assert found.faults == ()
    assert found.command == "tidelog sim --seeds 1 --nodes 3 --clients 9 --no-faults"


def _failing(wanted: Iterable[str], workers: Iterable[int], ran: list[int]) -> Callable[..., Any]:
    """Return storms that fail if these faults come while these clients work."""

    def storm(
        seed: int,
        *,
        faults: Iterable[str] | None = None,
        clients: Iterable[int] | None = None,
        transactions: bool = False,
        **_more: object,
    ) -> StormOutcome:
        ran.append(seed)
        some = tuple(map(str, drawn_faults(seed, 3)) if faults is None else faults)
        working = chosen_clients(clients, transactions=transactions)
        fails = set(wanted) <= set(some) and set(workers) <= set(working)
        return StormOutcome(
            seed=seed, nodes=3, faults=some, clients=working, failure="lost" if fails else None,
            trace="", calls=0, answered=0,
        )  # fmt: skip

    return storm


def test_a_failure_is_told_with_few_clients_and_the_command_that_shows_it_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    faults = [str(fault) for fault in drawn_faults(FAILING, 3)]
    monkeypatch.setattr(storming, "run_storm", _failing(faults[1:3], (4, 17), ran))
    done = run("sim", "--seeds", FAILING, "--transactions", "--growing", "--jsonl")
    failure = json.loads(done.stdout.splitlines()[0])
    assert (failure["faults"], failure["clients"]) == (faults[1:3], [4, 17])
    again = run(*shlex.split(failure["command"])[1:])
    assert again.exit_code == 3
    assert "  clients: 4, 17\n" in again.stdout
    assert f"  again: {failure['command']}\n" in again.stdout


def test_a_failure_that_needs_everybody_is_told_with_nobody_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storming, "run_storm", _failing((), range(10), []))
    told = run("sim", "--seeds", 1).stdout
    assert "clients" not in told
    assert "  again: tidelog sim --seeds 1 --nodes 3 --no-faults\n" in told


def test_the_search_for_less_that_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(storming, "run_storm", _failing((), (1, 3, 5, 7, 9), ran))
    found = judged(1, Shape(3), None, runs=4)
    assert len(ran) == 1 + 4
    assert found.failure == "lost"
    assert found.faults == ()


def confirms_nothing(patch: pytest.MonkeyPatch) -> None:
    """Take whatever a transaction has read in partitions that it does not write."""
    from tidelog.engine.node.commit_locks import CommitLocks

    patch.setattr(CommitLocks, "_confirm", lambda *_about: None)


@pytest.mark.slow
def test_few_faults_are_found_of_a_growing_storm_with_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirms_nothing(monkeypatch)
    found = judged(3, Shape(3, 1, growing=True, transactions=True), None, runs=6)
    drawn = [str(fault) for fault in drawn_faults(3, 3, 1, growing=True, transactions=True)]
    assert set(found.faults) < set(drawn)
    again = run_storm(
        3, backups=1, transactions=True, faults=found.faults, clients=found.shape.clients
    )
    assert again.failure == found.failure
    assert again.failure is not None


@pytest.mark.slow
def test_few_clients_are_found_of_a_storm_with_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirms_nothing(monkeypatch)
    found = judged(4, Shape(3, 1, transactions=True), ("1.000 join n4", "9.000 reset n1 n2"))
    assert found.failure is not None
    assert "not serializable" in found.failure
    assert found.shape.clients is not None
    assert len(found.shape.clients) < len(chosen_clients(None, transactions=True))
    again = run_storm(
        4, backups=1, transactions=True, faults=found.faults, clients=found.shape.clients
    )
    assert again.failure == found.failure


def test_clients_that_a_storm_does_not_have_are_refused(run: Run) -> None:
    for words in (["--clients", "10"], ["--clients", "0-20", "--transactions"]):
        refused = run("sim", "--seeds", 1, *words)
        assert refused.exit_code == 2
        assert "and one has to work" in refused.stderr
    assert run("sim", "--seeds", 1, "--clients", "x").exit_code == 2
    with pytest.raises(UsageError, match="one has to work"):
        run_storm(1, clients=())


def test_the_command_of_a_failure_is_quoted_for_a_shell() -> None:
    faults = ("1.000 kill_at n1 1 2.0 before sync",)
    verdict = Verdict(seed=7, shape=Shape(5), failure="x", faults=faults)
    assert shlex.split(verdict.command) == [
        "tidelog", "sim", "--seeds", "7", "--nodes", "5",
        "--fault", "1.000 kill_at n1 1 2.0 before sync",
    ]  # fmt: skip


def test_a_failure_of_a_cluster_with_copies_is_shown_again_with_as_many() -> None:
    verdict = Verdict(seed=7, shape=Shape(5, 2), failure="x", faults=())
    assert verdict.command == "tidelog sim --seeds 7 --nodes 5 --backups 2 --no-faults"


def test_storms_have_as_many_copies_as_are_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int, int]] = []
    grown: list[int] = []
    had: list[int] = []
    asked: list[str] = []

    def storm(
        seed: int,
        *,
        nodes: int,
        backups: int,
        growing: bool = False,
        transactions: bool = False,
        faults: Iterable[str] | None = None,
        clients: Iterable[int] | None = None,
        read_from: str,
    ) -> StormOutcome:
        ran.append((seed, nodes, backups))
        asked.append(read_from)
        if growing:
            grown.append(seed)
        if transactions:
            had.append(seed)
        return StormOutcome(
            seed=seed, nodes=nodes, backups=backups, faults=tuple(faults or ()),
            clients=tuple(clients or (0,)), failure="lost" if backups else None, trace="", calls=0,
            answered=0,
        )  # fmt: skip

    monkeypatch.setattr(storming, "run_storm", storm)
    assert run("sim", "--seeds", "1-2", "--nodes", 4).exit_code == 0
    done = run("sim", "--seeds", "3", "--nodes", 4, "--backups", 2)
    assert (done.exit_code, ran) == (3, [(1, 4, 0), (2, 4, 0), (3, 4, 2)])
    assert "  again: tidelog sim --seeds 3 --nodes 4 --backups 2 --no-faults\n" in done.stdout
    failure = json.loads(run("sim", "--seeds", 3, "--backups", 1, "--jsonl").stdout.split("\n")[0])
    assert (failure["nodes"], failure["backups"]) == (3, 1)
    assert run("sim", "--seeds", 4, "--growing").exit_code == 0
    assert grown == [4]
    told = run("sim", "--seeds", 5, "--backups", 1, "--transactions").stdout
    assert "again: tidelog sim --seeds 5 --nodes 3 --backups 1 --transactions --no-faults" in told
    assert set(had) == {5}
    assert set(asked) == {"primary"}
    asked.clear()
    told = run("sim", "--seeds", 6, "--backups", 1, "--read-from", "copies").stdout
    assert "again: tidelog sim --seeds 6 --nodes 3 --backups 1 --read-from copies --no-f" in told
    assert set(asked) == {"copies"}
    words = ("sim", "--seeds", 6, "--backups", 1, "--read-from", "copies", "--jsonl")
    assert json.loads(run(*words).stdout.split("\n")[0])["read_from"] == "copies"


def test_growing_storms_have_the_faults_of_the_seed(run: Run) -> None:
    for words in (["--no-faults"], ["--fault", "1.000 join n4"]):
        refused = run("sim", "--seeds", 1, "--growing", *words)
        assert refused.exit_code == 2
        assert "--growing is about the faults of the seed" in refused.stderr


@pytest.mark.slow
def test_a_storm_over_copies_passes_in_a_process_of_its_own(run: Run) -> None:
    done = run("sim", "--seeds", "1", "--backups", 2, "--no-faults", "--jobs", 2)
    assert (done.exit_code, done.stdout) == (0, "seeds: 1, failed: 0\n")


@pytest.mark.parametrize("seed", range(1, 60))
def test_what_a_seed_draws_is_read_back(seed: int) -> None:
    for fault in (
        *drawn_faults(seed, 5),
        *drawn_faults(seed, 5, growing=True),
        *drawn_faults(seed, 5, 2, transactions=True),
    ):
        assert parsed_fault(str(fault), 5) == fault


def test_seeds_are_ranges_and_numbers() -> None:
    assert parsed_numbers("17", "seeds") == [17]
    assert parsed_numbers("3,9-12, 10-13", "seeds") == [3, 9, 10, 11, 12, 13]
    for wrong in ("", "a", "1-", "-3", "5-1", "1,,2", "\u0661", "1-2-3", "99999999999"):
        with pytest.raises(UsageError):
            parsed_numbers(wrong, "seeds")


@pytest.mark.parametrize(
    "line",
    [
        "", "kill n1 torn 1", "1 nothing n1", "1 kill n1 torn", "1 kill n1 torn 1 2",
        "1 kill n6 torn 1", "1 kill n1 burnt 1", "1 kill n1 torn -1", "1 kill n1 torn nan",
        "x kill n1 torn 1", "-1 kill n1 torn 1", "1 kill_at n1 0 1 before sync",
        "1 kill_at n1 1 1 before lunch", "1 kill_at n1 1 1", "1 crash_at n1 1 soon 1",
        "1 cut n1,n9 1", "1 cut n1,n2,n3,n4,n5,c1,c2 1", "1 join n3",
        "1 cut_way n1 c3 1", "1 hold hello n1 n2 1",
        "1 jump n1 inf",
    ],
)  # fmt: skip
def test_a_line_that_is_no_fault_is_refused(run: Run, line: str) -> None:
    done = run("sim", "--seeds", "1", "--fault", line)
    assert done.exit_code == 2
    assert repr(line) in done.stderr
    assert "next:" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("--seeds", "x"), ("--seeds", "1", "--jobs", "0"), ("--seeds", "1", "--nodes", "1"),
        ("--seeds", "1", "--backups", "3"), ("--seeds", "1", "--nodes", "2", "--backups", "2"),
        ("--seeds", "1", "--fault", "1 power_cut 1", "--no-faults"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("sim", *arguments).exit_code == 2


@pytest.mark.parametrize("alone", [True, False])
def test_an_interrupt_tells_how_many_ran(
    run: Run, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def storm(seed: int, **_more: object) -> StormOutcome:
        if seed == 3:
            if alone:
                raise KeyboardInterrupt
            raise BaseExceptionGroup("of a world", [RuntimeError("ended"), KeyboardInterrupt()])
        ran.append(seed)
        return StormOutcome(
            seed=seed, nodes=3, faults=(), clients=(0,), failure=None, trace="", calls=0, answered=0
        )

    monkeypatch.setattr(storming, "run_storm", storm)
    done = run("sim", "--seeds", "1-9")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines()[0] == "interrupted: 2 of 9 seeds ran, 0 failed"
    assert ran == [1, 2]


@pytest.mark.slow
def test_a_signal_ends_all_processes() -> None:
    with _storming("1-100000") as process:
        workers = _workers_of(process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "of 100000 seeds ran, 0 failed" in err
    assert "Traceback" not in err
    assert not [pid for pid in workers if Path(f"/proc/{pid}/exe").exists()]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others() -> None:
    with _storming("1-100000") as process:
        workers = _workers_of(process)
        os.kill(workers[0], signal.SIGKILL)
        _out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a process that ran storms ended by itself" in err
    assert not [pid for pid in workers if Path(f"/proc/{pid}/exe").exists()]


@contextmanager
def _storming(seeds: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tidelog", "sim", "--seeds", seeds, "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Wait until both processes have begun to run storms, and return their pids."""
    deadline = time.monotonic() + 60
    while len(working := list(filter(_works, _children(process.pid)))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
    return working


def _works(pid: int) -> bool:
    try:
        return "lmdb" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
