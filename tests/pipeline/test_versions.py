"""Which PySpark is enough, and what an older one is told."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tidelog.affinity.errors import UsageError
from tidelog.pipeline.spark import doctor, versions
from tidelog.pipeline.spark.datasource import TidelogSource, register

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PySpark that is here, and too old."""
    monkeypatch.setattr(versions, "version", lambda name: "4.1.4")
    monkeypatch.setattr(doctor, "version", lambda name: "4.1.4")


def test_an_older_pyspark_is_named_when_it_is_used_first(old: None) -> None:
    # Every read said DATA_SOURCE_TYPE_MISMATCH.
    with pytest.raises(UsageError, match=r"needs PySpark 4\.2 or newer, and this is 4\.1\.4"):
        TidelogSource({"path": "/s"})
    with pytest.raises(UsageError, match=r"needs PySpark 4\.2 or newer"):
        register(None)  # type: ignore[arg-type]  # nothing is asked of it
    check = next(iter(doctor.examine(None)))
    assert "4.2 or newer, below 4.4, is needed" in (check.next or "")


def test_versions_that_are_enough_are_those_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    least, below = (".".join(map(str, numbers)) for numbers in (versions.LEAST, versions.BELOW))
    assert f"pyspark>={least},<{below}" in extras["spark"]
    versions.check_pyspark()


def test_what_a_pyspark_does_not_have_is_a_class_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("pyspark.sql.datasource")
    module.DataSource = type("DataSource", (), {})
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", module)
    assert versions.part_of("DataSource") is module.DataSource
    assert versions.part_of("DataSourceStreamArrowWriter").__mro__[1:] == (object,)
    assert versions.part_of("Gone", module="pyspark.gone").__name__ == "Gone"
