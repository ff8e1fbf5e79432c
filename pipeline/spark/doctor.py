"""Whether Spark can work here, and what to do if it cannot.

The first check that fails is told in words; those that need it are left out.

Left out: repairing anything.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .versions import BELOW, LEAST, numbers_of

JAVA_LEAST = 17
VECTOR_MODULE = "jdk.incubator.vector"
NEEDED = ("tidelog", "pyarrow", "lmdb", "msgpack", "mmh3", "crc32c")
JAVA_SECONDS = 60

_INSTALL = "Install the extra: pip install 'tidelog[spark]'."


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that Spark needs: what was found, and what to do if it is not right."""

    name: str
    found: str
    next: str | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is to be done."""
        return self.next is None


def examine(master: str | None) -> Iterator[Check]:
    """Yield the checks, one by one; ``master`` None starts no session."""
    checks = [_pyspark(), _pyarrow(), *_java(), _interpreter(), _chosen_interpreter()]
    yield from checks
    if master is not None and all(check.passed for check in checks):
        yield from _session(master)


def _package(name: str, fits: Callable[[tuple[int, ...]], bool], wanted: str) -> Check:
    try:
        found = version(name)
        importlib.import_module(name)
    except (PackageNotFoundError, ImportError) as error:
        return Check(name, f"not here: {error}", _INSTALL)
    return Check(
        name, found, None if fits(numbers_of(found)) else f"{wanted} is needed. {_INSTALL}"
    )


def _pyspark() -> Check:
    wanted = f"{_text(LEAST)} or newer, below {_text(BELOW)},"
    return _package("pyspark", lambda found: LEAST <= found < BELOW, wanted)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _pyarrow() -> Check:
    return _package("pyarrow", lambda found: found >= (20,), "20 or newer")


def _java() -> Iterator[Check]:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = (
        f"Install a full Java {JAVA_LEAST} or newer (Debian: openjdk-17-jre-headless), and have "
        "it on PATH or in JAVA_HOME."
    )
    if java is None or not os.access(java, os.X_OK):
        yield Check("java", f"not found{f' in JAVA_HOME={home}' if home else ' on PATH'}", install)
        return
    said = _ask(java, "-version")
    numbers = re.search(r'version "(\d+)', said)
    found = int(numbers[1]) if numbers else 0
    yield Check(
        "java", f"{found or said.strip()} ({java})", None if found >= JAVA_LEAST else install
    )
    if found >= JAVA_LEAST:
        whole = VECTOR_MODULE in _ask(java, "--list-modules")
        yield Check(
            "java modules",
            "all" if whole else f"without {VECTOR_MODULE}",
            None if whole else f"A trimmed runtime does not start Spark. {install}",
        )


def _ask(java: str, question: str) -> str:
    try:
        done = subprocess.run(
            [java, question], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def _interpreter() -> Check:
    path = sys.executable
    advice = "Spark cannot start workers by a path with a space: make the environment elsewhere."
    return Check("interpreter", path, advice if " " in path else None)


def _chosen_interpreter() -> Check:
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return Check("PYSPARK_PYTHON", "not set; `local_session` sets it")
    same = _place_of(chosen) == _place_of(sys.executable)
    advice = f"Workers would run another Python: unset it, or set it to {sys.executable}."
    return Check("PYSPARK_PYTHON", chosen, None if same else advice)


def _place_of(python: str) -> tuple[str, str]:
    """Return the folder of an interpreter and the program that it is, whatever it is called.

    The folder is that of an environment, which has a program in common with others.
    """
    found = os.path.abspath(shutil.which(python) or python)
    return os.path.realpath(os.path.dirname(found)), os.path.realpath(found)


def _session(master: str) -> Iterator[Check]:
    from .sessions import local_session

    try:
        spark = local_session(master)
        workers = spark.sparkContext.parallelize(range(2), 2).map(_worker).collect()
    except Exception as error:  # whatever Java and Spark may say
        text = str(error).strip().splitlines()
        yield Check("session", text[0] if text else repr(error), "Look at the log of Spark above.")
        return
    yield Check("session", f"Spark {spark.version} at {master}")
    pythons = sorted({f"{major}.{minor}" for (major, minor), _ in workers})
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    advice = f"The driver has Python {here}: give the workers the same one (PYSPARK_PYTHON)."
    yield Check("workers' Python", ", ".join(pythons), None if pythons == [here] else advice)
    missing = sorted({name for _, names in workers for name in names})
    advice = "Install tidelog[spark] on every worker, or ship an environment: --archives."
    yield Check(
        "workers' packages", f"without {', '.join(missing)}" if missing else "all",
        advice if missing else None,
    )  # fmt: skip
    try:
        fresh = spark.newSession()
        fresh.read.format("tidelog").option("path", "").option("view", "doctor").load()
    except Exception as error:
        known = "there is no view" in str(error)
    else:
        known = False
    advice = "Spark does not find the package pyspark_tidelog: call `tidelog.pipeline.register`."
    yield Check("format tidelog", "found" if known else "not found", None if known else advice)


def _worker(_number: int) -> tuple[tuple[int, int], list[str]]:
    """Return what a worker runs, and what it lacks."""
    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return (sys.version_info[0], sys.version_info[1]), missing
