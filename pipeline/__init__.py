"""The data pipeline: a store's data, changes and log as Arrow batches and Spark DataFrames."""

from .datasource import register, snapshot_vector
from .sessions import local_session

__all__ = ["local_session", "register", "snapshot_vector"]
