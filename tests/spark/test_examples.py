"""The examples do what they say."""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import pytest
from matplotlib import pyplot

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


def test_the_notebook_shows_what_its_cells_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("agg")
    notebook = json.loads((EXAMPLES / "log_of_a_shop.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    pictures = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        recorded = [text for shown in cell["outputs"] for text in shown.get("text", [])]
        assert capsys.readouterr().out == "".join(recorded)
        drawn = [shown for shown in cell["outputs"] if "image/png" in shown.get("data", {})]
        assert len(pyplot.get_fignums()) == len(drawn)
        pictures += len(drawn)
        pyplot.close("all")
    assert pictures == 3
