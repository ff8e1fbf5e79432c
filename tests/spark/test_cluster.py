"""A standalone cluster of Spark, one master and two workers, with the installed wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from support.pipelines import closed_store, content, rows
from tidelog.engine.upkeep.check import check_store

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"

PROGRAM = """
import os, sys
import tidelog
from pyspark.sql import SparkSession
from tidelog.pipeline.jobs import audits
from tidelog.pipeline.jobs.runner import Runner

store = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
changes = spark.read.format("tidelog").options(path=store, view="changes", minPartitions="8").load()
ops = changes.groupBy("op").count()
ops.selectExpr("cast(op as binary) key", "cast(string(count) as binary) value") \\
    .write.format("tidelog").mode("append").options(path=store, namespace="counts").save()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("EXECUTORS", executors, "FROM", tidelog.__file__)
spark.stop()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the package as a wheel installs it."""
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True, timeout=300)
    return target


@contextmanager
def daemon(
    folder: Path, env: dict[str, str], kind: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A process of the cluster, and the lines of its log."""
    child = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), f"{DEPLOY}.{kind}", *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield child, iter(child.stdout)
    finally:
        child.terminate()
        child.communicate(timeout=60)


def wait_for(lines: Iterator[str], pattern: str) -> str:
    """The group of the first line that matches."""
    seen = []
    for line in lines:
        seen.append(line)
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError("".join(seen))


def test_a_cluster_reads_and_writes_a_store_on_a_shared_path(
    tmp_path: Path, installed: Path
) -> None:
    store = closed_store(tmp_path / "store")
    expected: dict[bytes, int] = {}
    for row in rows(store, "changes"):
        expected[row["op"].encode()] = expected.get(row["op"].encode(), 0) + 1
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(installed),
    }
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as cluster:
        _, lines = cluster.enter_context(daemon(tmp_path, env, "master.Master", *here))
        master = wait_for(lines, r"(spark://127\.0\.0\.1:\d+)")
        for number in range(2):
            place = ("--work-dir", str(tmp_path / f"work{number}"))
            size = ("--cores", "1", "--memory", "1g")
            worker = daemon(tmp_path, env, "worker.Worker", *here, *place, *size, master)
            _, told = cluster.enter_context(worker)
            wait_for(told, r"(Successfully registered with master)")
        submit = [str(HOME / "bin" / "spark-submit"), "--master", master]
        conf = ("spark.ui.enabled=false", "spark.executor.memory=512m",
                "spark.scheduler.minRegisteredResourcesRatio=1.0",
                "spark.sql.shuffle.partitions=2")  # fmt: skip
        done = subprocess.run(
            [
                *submit,
                *(part for one in conf for part in ("--conf", one)),
                str(program),
                str(store),
            ],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told_by = re.search(r"EXECUTORS (\d+) FROM (.*)", done.stdout)
    assert told_by is not None
    assert told_by[1] == "2"
    assert Path(told_by[2]).is_relative_to(installed)
    assert {k: int(v) for k, v in content(store)["counts"].items()} == expected
    assert check_store(store) == []
