"""The base classes of PySpark's data sources; where PySpark is missing, plain objects.

So everything else here can be imported without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource as DataSource,
        DataSourceReader as DataSourceReader,
        DataSourceStreamReader as DataSourceStreamReader,
        InputPartition as InputPartition,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
else:
    try:
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceReader,
            DataSourceStreamReader,
            InputPartition,
        )
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ModuleNotFoundError:

        class DataSource:
            """A format."""

        class DataSourceReader:
            """What reads a batch."""

        class DataSourceStreamReader:
            """What reads a stream."""

        class AvailableNow:
            """What can end a stream at what is there now."""

        class InputPartition:
            """What a task reads."""

            def __init__(self, value: Any) -> None:
                self.value = value


__all__ = [
    "AvailableNow",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
]
