"""The examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidelog
from tidelog.engine.upkeep.check import check_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CITIES: list[dict[str, Any]] = [
    {"country": country, "population": 1000 * number + 7}
    for number, country in enumerate(["DE", "FR", "DE", "PT", "FR", "AD", "DE"] * 20)
]


def test_cities_are_followed_and_the_audit_agrees(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLES / "follow_cities.py"))
    example["run"](spark, str(tmp_path), CITIES, 30)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("140 cities followed")
    assert told[3] == "audit: 0 countries differ"
    path = tmp_path / "cities.tl"
    with tidelog.open(path) as db:
        sums = dict(db.map("countries").items())
        assert sum(entry["people"] for entry in sums.values()) == sum(
            city["population"] for city in CITIES
        )
        assert sum(entry["events"] for entry in sums.values()) == len(CITIES) + 2 * 2 * 30
        db.map("countries")["DE"] = {"people": 1, "events": 1}
    wrong = example["audit"](spark, str(path))
    assert [row["country"] for row in wrong] == ["DE"]
    assert check_store(path) == []
