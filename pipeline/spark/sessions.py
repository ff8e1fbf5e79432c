"""A Spark session that works: its workers use the interpreter and the packages of its driver."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from .datasource import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DISCOVERED = "pyspark_tidelog"
"""The package in which Spark finds the format by itself."""


def local_session(master: str = "local[*]", **conf: str) -> SparkSession:
    """Return a session on this machine that knows the format ``tidelog``.

    Spark starts its workers with the ``python3`` of PATH otherwise, which is not that of a virtual
    environment.  ``conf`` are settings of Spark with ``__`` instead of dots.
    """
    from pyspark.sql import SparkSession

    # Not a setting of the session: planners and stream runners look only here.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("tidelog")
    for name, value in conf.items():
        builder = builder.config(name.replace("__", "."), value)
    session = builder.getOrCreate()
    if importlib.util.find_spec(DISCOVERED) is None:  # else Spark registers it when it is needed
        register(session)
    return session
