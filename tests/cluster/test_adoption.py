"""An embedded store becomes the first member of a cluster, which then grows around it (S9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from click.testing import CliRunner

import tidelog
from tidelog.codecs import I64, Msgpack, Str
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.api.open import open_with
from tidelog.engine.files import manifest as manifests
from tidelog.engine.node.adopting import adopt_store
from tidelog.engine.system.environment import Environment
from tidelog.engine.system.production import production
from tidelog.errors import UsageError
from tidelog.testing import SimCluster
from tidelog.tools.main import cli

CLUSTER, MEMBER = UUID(int=77), UUID(int=1)
PARTITIONS = 6
QUICK = Timing(join_wait=0.5, swap_pause=0.2)
CITIES = {f"city {n}": {"people": n * 1000, "at": [n, -n]} for n in range(120)}


def lived(environment: Environment, path: str) -> None:
    """Make a store with a history: maps that came and went, deletes, several opens."""
    with open_with(environment, path, partitions=PARTITIONS) as db:
        db.map("dropped", key=Str, value=Str)["a"] = "b"
        cities = db.map("cities", key=Str, value=Msgpack)
        for name in CITIES:
            cities[name] = {"people": 0}
    with open_with(environment, path) as db:
        db.drop("dropped")
        cities = db.map("cities", key=Str, value=Msgpack)
        with db.transaction() as tx:
            for name, value in CITIES.items():
                tx[cities][name] = value
        cities["gone"] = {}
        del cities["gone"]
        db.map("numbers", key=Str, value=I64)["x"] = 1


def crashed(environment: Environment, path: str) -> None:
    """Make such a store of which one process ended without closing it, so that epochs rose."""
    lived(environment, path)
    db = open_with(environment, path)
    db.map("numbers", key=Str, value=I64)["x"] = 2
    db._session.abandon()
    with open_with(environment, path) as again:
        again.map("numbers", key=Str, value=I64)["x"] = 1


async def grow(at: SimCluster, *names: str) -> None:
    """Let members join, and wait until they hold what they are to hold."""
    for name in names:
        at.join(name)
        while at.member_id(name) not in at.topology().placed:
            await trio.sleep(0.05)
    await at.whole()
    await at.settled()


async def check_cities(at: SimCluster) -> None:
    db = at.client(timeout=30)
    cities = db.map("cities", key=Str, value=Msgpack)
    assert {name: await cities.get(name) for name in CITIES} == CITIES
    assert await cities.get("gone") is None
    assert await db.map("numbers", key=Str, value=I64).get("x") == 1
    await db.aclose()


@pytest.mark.parametrize("made", [lived, crashed])
def test_two_members_join_a_store_that_was_embedded_and_the_first_one_is_killed(
    made: Callable[[Environment, str], None],
) -> None:
    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await check_cities(at)
        await grow(at, "n2", "n3")
        assert all(len(one.in_sync) == 3 for one in at.topology().partitions)
        await at.kill("n1")
        await check_cities(at)
        db = at.client(timeout=30)
        cities = db.map("cities", key=Str, value=Msgpack)
        await cities.set("new", {"people": 1})
        await db.aclose()
        at.start(["n1"])
        await at.whole()
        await at.quiesce()
        for partition in range(PARTITIONS):
            assert len({at.digest(name, partition) for name in at.names}) == 1
        await check_cities(at)

    SimCluster(seed=1, nodes=1, partitions=PARTITIONS, backups=2, timing=QUICK, store=made).run(
        scenario
    )


# ------------------------------------------------------------------ what cannot be


def adopted(path: Path, **more: Any) -> None:
    address = "127.0.0.1:1"
    adopt_store(production(), str(path), cluster=CLUSTER, member=MEMBER, address=address, **more)


def made(path: Path) -> Path:
    with tidelog.open(path) as db:
        db.map("cities", key=Str, value=I64)["a"] = 1
    return path


def test_what_was_adopted_is_a_members_for_good(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    before = manifests.read(production().disk.directory(str(path)))
    adopted(path, backups=2)
    after = manifests.read(production().disk.directory(str(path)))
    assert (after.store_id, after.history_id) == (before.store_id, before.history_id)
    assert (after.cluster, after.member) == (CLUSTER.hex, MEMBER.hex)
    for read_only in (False, True):
        with pytest.raises(UsageError, match="belongs to a cluster"):
            tidelog.open(path, read_only=read_only)
    with pytest.raises(UsageError, match="belongs to a cluster"):
        adopted(path)


def test_a_store_whose_end_nobody_has_looked_at_is_not_adopted(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    keeper = production().disk.directory(str(path))
    manifests.write(keeper, replace(manifests.read(keeper), clean_end=None))
    with pytest.raises(UsageError, match="was not closed in order"):
        adopted(path)
    with tidelog.open(path) as db:
        assert db.map("cities", key=Str, value=I64)["a"] == 1
    adopted(path)


@pytest.mark.parametrize("backups", [-1, 7])
def test_backups_that_cannot_be_leave_the_store_alone(tmp_path: Path, backups: int) -> None:
    path = made(tmp_path / "store")
    with pytest.raises(UsageError, match=f"{backups} backups cannot be had"):
        adopted(path, backups=backups)
    assert "config.log" not in {one.name for one in path.iterdir()}
    tidelog.open(path).close()


def test_no_store_is_made_where_none_is(tmp_path: Path) -> None:
    with pytest.raises(tidelog.errors.NotFoundError, match="no store"):
        adopted(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_an_adoption_that_was_interrupted_leaves_a_store_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "store")

    def broken(*_about: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidelog.engine.node.adopting._of_member", broken)
        with pytest.raises(KeyboardInterrupt):
            adopted(path)
    assert "config.log" in {one.name for one in path.iterdir()}
    with tidelog.open(path) as db:
        cities = db.map("cities", key=Str, value=I64)
        assert cities["a"] == 1
        cities["b"] = 2
    adopted(path)
    with pytest.raises(UsageError, match="belongs to a cluster"):
        tidelog.open(path)


def test_the_command_recovers_what_a_crash_has_left_and_adopts_it(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    keeper = production().disk.directory(str(path))
    manifests.write(keeper, replace(manifests.read(keeper), clean_end=None))
    arguments = ["server", "adopt", str(path), "--listen", "127.0.0.1:7400", "--json"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["name"], told["address"]) == ("n1", "127.0.0.1:7400")
    assert manifests.read(keeper).cluster == UUID(told["cluster"]).hex
    assert manifests.read(keeper).member == UUID(told["member"]).hex
    assert "run it with" not in done.stderr
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 7
    assert f"is that of a member of cluster {told['cluster']} already" in again.output
    for_people = ["server", "adopt", str(made(tmp_path / "y")), "--listen", "127.0.0.1:7400"]
    next_step = f"run it with `tidelog server run {tmp_path / 'y'}`\n"
    assert CliRunner().invoke(cli, for_people).stderr == next_step
    for wrong in (["--listen", "nowhere"], ["--listen", "127.0.0.1:1", "--name", "no name"], []):
        refused = CliRunner().invoke(cli, ["server", "adopt", str(made(tmp_path / "x")), *wrong])
        assert refused.exit_code == 2
