"""The command line of ``spark-submit`` that runs a script where its workers can run it.

Workers either have Tidelog and what it needs, under the path of the driver's interpreter, or an
archive of a virtual environment brings all of it.  Files of Python code bring a package that is
nothing else: LMDB, PyArrow and others have compiled parts, which Python does not load from them.

Left out: making the archive, and drivers that run in the cluster (``--deploy-mode cluster``).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence

from ...affinity.errors import UsageError

ENVIRONMENT = "env"
"""The folder that an archive is unpacked into: each executor does it, for the driver its user."""


def submit_command(
    program: str,
    interpreter: str,
    script: str,
    arguments: Sequence[str] = (),
    *,
    master: str | None = None,
    archive: str | None = None,
    py_files: str | None = None,
) -> list[str]:
    """Return the arguments of a process that runs a script; ``program`` is ``spark-submit``.

    ``interpreter`` is that of driver and workers if there is no archive of an environment.
    """
    command = [program]
    if master is not None:
        command += ["--master", master]
    if archive is not None:
        if py_files is not None:
            raise UsageError(
                "an archive and Python files exclude each other",
                hint="Install the files into the environment that the archive is made of.",
            )
        interpreter = f"./{ENVIRONMENT}/bin/python"
        command += ["--archives", f"{archive}#{ENVIRONMENT}"]
        command += ["--conf", f"spark.pyspark.python={interpreter}"]
    elif py_files is not None:
        command += ["--py-files", py_files]
    # The JVM, too, starts workers, which look for formats and plan reads: it knows this one only.
    return ["env", f"PYSPARK_PYTHON={interpreter}", *command, script, *arguments]


def find_program() -> str:
    """Return the path of ``spark-submit``: of SPARK_HOME, of PySpark, or on PATH."""
    homes = [os.environ.get("SPARK_HOME")]
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        homes.append(os.path.dirname(pyspark.origin))
    for home in filter(None, homes):
        program = os.path.join(home, "bin", "spark-submit")
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("spark-submit")
    if found is None:
        raise UsageError(
            "there is no spark-submit in SPARK_HOME, with PySpark or on PATH",
            hint="pip install 'tidelog[spark]', or set SPARK_HOME.",
        )
    return found


def check_unpacked(archive: str) -> None:
    """Raise ``UsageError`` if the driver would not find the interpreter of an archive."""
    if not os.path.exists(os.path.join(ENVIRONMENT, "bin", "python")):
        raise UsageError(
            f"the driver needs {archive} unpacked here, for it plans reads with ./{ENVIRONMENT}",
            hint=f"mkdir {ENVIRONMENT} && tar -xf {archive} -C {ENVIRONMENT}",
        )
