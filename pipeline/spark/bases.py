"""The base classes of PySpark's data sources; if PySpark is missing, plain objects.

So everything else here can be imported without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource as DataSource,
        DataSourceArrowWriter as DataSourceArrowWriter,
        DataSourceReader as DataSourceReader,
        DataSourceStreamArrowWriter as DataSourceStreamArrowWriter,
        DataSourceStreamReader as DataSourceStreamReader,
        InputPartition as InputPartition,
        WriterCommitMessage as WriterCommitMessage,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
else:
    try:
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamArrowWriter,
            DataSourceStreamReader,
            InputPartition,
            WriterCommitMessage,
        )
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ModuleNotFoundError:

        class DataSource:
            """A format."""

        class DataSourceReader:
            """What reads a batch."""

        class DataSourceStreamReader:
            """What reads a stream."""

        class DataSourceArrowWriter:
            """What writes a batch."""

        class DataSourceStreamArrowWriter:
            """What writes a stream."""

        class WriterCommitMessage:
            """What a task that wrote tells."""

        class AvailableNow:
            """What can end a stream at what is there now."""

        class InputPartition:
            """What a task reads."""

            def __init__(self, value: Any) -> None:
                self.value = value


__all__ = [
    "AvailableNow",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "WriterCommitMessage",
]
