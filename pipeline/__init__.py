"""The data pipeline: a store's data, changes and log as Arrow batches and Spark DataFrames."""

from .spark.datasource import register, snapshot_vector
from .spark.frames import decode_key, decode_value, partition_of, with_preimages
from .spark.sessions import local_session

__all__ = [
    "decode_key",
    "decode_value",
    "local_session",
    "partition_of",
    "register",
    "snapshot_vector",
    "with_preimages",
]
