"""Lets Spark find the format ``tidelog``: it imports every package that is named ``pyspark_*``."""

from tidelog.pipeline.spark.datasource import TidelogSource


class DefaultSource(TidelogSource):
    """The format ``tidelog``."""
