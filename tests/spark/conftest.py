"""The one Spark session of a test run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog.pipeline.spark.sessions import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose tasks are tried three times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = local_session(
            "local[2,3]",
            spark__ui__enabled="false",
            spark__sql__shuffle__partitions="2",
            spark__log__level="OFF",
            spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        )
    yield session
    session.stop()
