"""Brings rows into the order of a load, by Spark: one task for each file.

Left out: what a load is (``engine.upkeep.load_files``), and loads without Spark (``jobs.loads``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...affinity import errors
from ...affinity.errors import StorageError, TidelogError, UsageError
from .frames import partition_of
from .sessions import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS = re.compile(r"tidelog\.affinity\.errors\.(\w+Error): (.*)(?:\nTL-[\w-]+; next: (.*))?")


def arrange(frame: DataFrame, partitions: int, files: int | None = None) -> DataFrame:
    """Bring the columns ``key`` and ``value`` into the order of a load: one task per file.

    Each task has whole partitions, next to each other, of a store that has so many.
    """
    from pyspark.sql import functions as f

    wanted = files or 2 * frame.sparkSession.sparkContext.defaultParallelism
    tasks = min(wanted, partitions)
    # Bytes in front of the key and not a column of their own: Spark compares the first eight bytes
    # of the first column by themselves, and all columns one by one only if these are the same.
    full_key = "concat(to_binary(lpad(hex(partition), 4, '0'), 'hex'), key)"
    return (
        frame.select("key", "value", partition_of("key", partitions).alias("partition"))
        .repartitionById(tasks, f.expr(f"int(partition * {tasks} div {partitions})"))
        .sortWithinPartitions(f.expr(full_key), "value")
        .select("key", "value")
    )


def write_load(
    source: str,
    form: str,
    columns: tuple[str, str],
    options: Mapping[str, str],
    *,
    partitions: int,
    files: int | None,
    replace: bool,
    master: str,
) -> None:
    """Write the columns of a file, or of the files of a folder, as a load.

    ``form`` is ``parquet``, ``csv`` or ``jsonl``; ``options`` are those of the sink, ``master`` is
    that of Spark.  Raises errors of Tidelog as they were raised in its tasks.
    """
    from pyspark.errors import PySparkException

    session = local_session(master)
    try:
        frame = arrange(_frame(session, source, form, columns), partitions, files)
        write = frame.write.format("tidelog").mode("overwrite" if replace else "append")
        write.options(**options).save()
    except PySparkException as error:
        ours = _our_error(str(error))
        if ours is None:
            raise
        raise ours from error


def _frame(spark: SparkSession, source: str, form: str, columns: tuple[str, str]) -> DataFrame:
    from pyspark.sql import functions as f

    if form == "parquet":
        frame = spark.read.parquet(source)
    elif form == "csv":
        frame = spark.read.csv(source, header=True, escape='"', mode="FAILFAST").na.fill("")
    else:
        frame = spark.read.json(source, mode="FAILFAST")
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    check_kinds({name: kinds.get(name) for name in columns}, ("string", "binary"))
    return frame.select(
        *(
            f.col(f"`{name}`").cast("binary").alias(alias)
            for name, alias in zip(columns, ("key", "value"), strict=True)
        )
    )


def check_kinds(kinds: Mapping[str, str | None], allowed: Sequence[str]) -> None:
    """Raise ``UsageError`` unless all columns are there, each of an allowed kind."""
    for name, kind in kinds.items():
        if kind is None:
            raise UsageError(f"there is no column {name}", hint="Name those of key and value.")
        if kind not in allowed:
            raise UsageError(
                f"the column {name} is {kind}; a load takes text, or bytes",
                hint="Encode it as the codecs of the map do.",
            )


def _our_error(text: str) -> TidelogError | None:
    """Return the error of Tidelog, with its hint, of which a text of Spark tells, if it does."""
    told = _OURS.search(text)
    if told is None:
        return None
    found = getattr(errors, told[1], UsageError)
    kind = StorageError if issubclass(found, StorageError) else UsageError
    return kind(told[2], hint=told[3])
