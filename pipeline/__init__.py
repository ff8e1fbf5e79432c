"""The data pipeline: a store's data, changes and log as Arrow batches and Spark DataFrames."""

from .spark.datasource import register, snapshot_vector
from .spark.frames import partition_of, with_preimages
from .spark.sessions import local_session

__all__ = ["local_session", "partition_of", "register", "snapshot_vector", "with_preimages"]
