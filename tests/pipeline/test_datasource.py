"""The thin shell of Spark, without a session: schemas that are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from support.pipelines import closed_store
from tidelog.affinity.errors import UsageError
from tidelog.pipeline.spark.datasource import TidelogSource


@pytest.fixture
def source(tmp_path: Path) -> TidelogSource:
    return TidelogSource({"path": str(closed_store(tmp_path / "s"))})


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("KEY", BinaryType()), "has no column KEY"),
        (StructField("price", BinaryType()), "has no column price"),
        (StructField("key", StringType()), "key is binary, not string"),
        (StructField("partition", LongType()), "partition is int, not bigint"),
    ],
)
def test_a_schema_that_is_none_of_the_view_is_told_in_words(
    source: TidelogSource, field: StructField, said: str
) -> None:
    # Every first action ended with a mismatch of PySpark's.
    schema = StructType([StructField("value", BinaryType()), field])
    with pytest.raises(UsageError, match=said):
        source.reader(schema)
    with pytest.raises(UsageError, match="no column"):
        source.streamReader(StructType([StructField("counter ", LongType())]))


def test_a_schema_in_another_order_is_that_of_the_batches(source: TidelogSource) -> None:
    names = ["value", "partition", "key"]
    kinds = {"value": BinaryType(), "partition": IntegerType(), "key": BinaryType()}
    reader = source.reader(StructType([StructField(name, kinds[name]) for name in names]))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batches
    assert all(batch.schema.names == names for batch in batches)  # type: ignore[union-attr]
