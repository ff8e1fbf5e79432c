"""Sessions of Spark, made of what notes how it is called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from tidelog.pipeline.spark import sessions
from tidelog.pipeline.spark.datasource import TidelogSource


class Session:
    """A Spark session, and its own builder and register of data sources."""

    def __init__(self) -> None:
        self.builder = self.dataSource = self
        self.settings: dict[str, str] = {}
        self.registered: list[object] = []

    def master(self, master: str) -> Session:
        return self.config("spark.master", master)

    def appName(self, name: str) -> Session:  # noqa: N802
        return self.config("spark.app.name", name)

    def config(self, name: str, value: str) -> Session:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Session:  # noqa: N802
        return self

    def register(self, source: object) -> None:
        self.registered.append(source)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    module: Any = ModuleType("pyspark.sql")
    module.SparkSession = made
    monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))
    monkeypatch.setitem(sys.modules, "pyspark.sql", module)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "before")  # and put back behind the test
    return made


@pytest.mark.parametrize(("package", "registered"), [(pytest, []), (None, [TidelogSource])])
def test_a_format_is_registered_only_where_spark_does_not_find_it(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    package: ModuleType | None,
    registered: list[object],
) -> None:
    # Spark warned at every start that the format had replaced a statically registered one.
    monkeypatch.setitem(sys.modules, sessions.DISCOVERED, package)
    made: object = sessions.local_session("local[7]", spark__ui__enabled="false")
    assert made is session
    assert session.registered == registered
    assert session.settings == {
        "spark.master": "local[7]",
        "spark.app.name": "tidelog",
        "spark.ui.enabled": "false",
    }
