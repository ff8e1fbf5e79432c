"""The base classes of PySpark's data sources; what PySpark does not have is a plain object.

So everything else here can be imported without it, and says itself what is missing (``versions``).
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
    from .versions import part_of

    class _InputPartition:
        """What a task reads."""

        def __init__(self, value: Any) -> None:
            self.value = value

    DataSource = part_of("DataSource")
    DataSourceReader = part_of("DataSourceReader")
    DataSourceStreamReader = part_of("DataSourceStreamReader")
    DataSourceArrowWriter = part_of("DataSourceArrowWriter")
    DataSourceStreamArrowWriter = part_of("DataSourceStreamArrowWriter")
    WriterCommitMessage = part_of("WriterCommitMessage")
    InputPartition = part_of("InputPartition", instead=_InputPartition)
    AvailableNow = part_of("SupportsTriggerAvailableNow", module="pyspark.sql.streaming.datasource")


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
