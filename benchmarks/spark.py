"""The pipeline beside Parquet, beside one process, and with more and fewer cores.

    .venv/bin/python benchmarks/spark.py --write

Everything runs on the same records; sessions of Spark have processes of their own, are warmed up
by two rounds, and measure all in turn in each; the best of the rounds counts.  `--write` replaces
the table of docs/spark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack
import pyarrow as pa
from crc32c import crc32c
from report import table
from workloads import pairs_of

import tidelog
from tidelog.pipeline.jobs import audits, loads, runner as jobs
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.log import columns
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.reads import read

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "spark.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TRANSACTION = 10

# row, what, ratio of which measurements (time over time), whether it is to be below, target
TARGETS = (
    ("snapshot", "a scan of a snapshot beside Spark's of Parquet", ("snapshot", "parquet"), 3.5),
    ("one process", "one process beside a scan in Spark, 2 cores", ("process", "snapshot"), -0.75),
    ("2 cores", "1 core beside 2", ("snapshot 1", "snapshot"), -1.5),
    ("keys", "keys alone beside all columns", ("keys", "snapshot"), 0.9),
    ("changes", "changes beside Parquet of the same", ("changes", "changes parquet"), 2.5),
    ("decode", "a frame per update beside the log, one core", ("per update", "decode"), -2.5),
    ("verify", "verifying three copies beside reading them", ("verify", "three copies"), 1.1),
    ("partitions", "1,024 partitions beside 64", ("wide", "snapshot"), 1.3),
    ("load", "a bulk load beside Spark's shuffle, sort and Parquet", ("load", "sorted parquet"), 2),
    ("one process, load", "a bulk load in Spark beside one process", ("load", "process load"), 1),
)

# view, what, ratio of which peaks of memory, target
FLAT = (
    ("snapshot", "memory of a task, all records beside a quarter", 1.1),
    ("changes", "memory of a task, changes of all beside a quarter", 1.1),
)


def prepare(folder: Path, records: int) -> None:
    """Make stores, copies of the first, and Parquet of its data and changes."""
    pairs = pairs_of(records, 1)
    for name, partitions, share in (("store", 64, 1), ("wide", 1024, 1), ("quarter", 64, 4)):
        with tidelog.open(
            folder / name, partitions=partitions, durability="none", retain_bytes=1 << 40
        ) as db:
            table = db.map("bench")
            for at in range(0, len(pairs) // share, TRANSACTION):
                table.update_many(pairs[at : at + TRANSACTION])
            db.checkpoint()
            if name == "store":
                for number in range(2):
                    db.backup(folder / f"copy{number}", verify=False)
    for view in ("snapshot", "changes"):
        given = {"path": str(folder / "store"), "view": view, "minPartitions": "8"}
        jobs.export(given, str(folder / f"{view}.parquet"), "parquet", Runner())


def best(measures: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The seconds of the best of some rounds, all in turn in each; two before do not count."""
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(2 + rounds):
        for name, measure in measures.items():
            begin = perf_counter()
            measure()
            taken[name].append(perf_counter() - begin)
    return {name: min(seconds[2:]) for name, seconds in taken.items()}


def in_spark(folder: Path, cores: int, rounds: int) -> dict[str, float]:
    """Measure in a session with so many cores."""
    from pyspark.sql import functions as f

    from tidelog.pipeline import local_session

    spark = local_session(
        f"local[{cores}]", spark__ui__enabled="false", spark__sql__shuffle__partitions="2"
    )
    spark.sparkContext.setLogLevel("ERROR")

    def load(name: str, view: str = "snapshot", schema: str | None = None) -> Any:
        reader = spark.read.format("tidelog").options(path=str(folder / name), view=view)
        return (reader if schema is None else reader.schema(schema)).load()

    def summed(frame: Any) -> Callable[[], object]:
        sums = [f.sum(f.length(name)) for name in ("key", "value") if name in frame.columns]
        numbers = [f.max("counter"), f.max("commit_ts")] if "counter" in frame.columns else []
        # Aggregated anew each time: Spark keeps the results of what it has collected.
        return lambda: frame.agg(f.count("*"), *sums, *numbers).collect()

    parquet = spark.read.parquet
    tasks = 2 * cores

    def sorted_parquet() -> None:
        rows = parquet(str(folder / "snapshot.parquet")).select("key", "value")
        rows = rows.repartition(tasks, "key").sortWithinPartitions("key")
        rows.write.parquet(str(folder / "sorted.parquet"), mode="overwrite")

    three = [str(folder / name) for name in ("store", "copy0", "copy1")]
    runner = Runner("spark", f"local[{cores}]")
    measures = {
        "parquet": summed(parquet(str(folder / "snapshot.parquet"))),
        "snapshot": summed(load("store")),
        "keys": summed(load("store", schema="key binary")),
        "changes": summed(load("store", "changes")),
        "changes parquet": summed(parquet(str(folder / "changes.parquet"))),
        "wide": summed(load("wide")),
        "verify": lambda: audits.verify(three, runner),
        "sorted parquet": sorted_parquet,
        "load": lambda: bulk_load(folder, runner, tasks),
    }
    return best(measures, rounds)


def in_process(folder: Path, rounds: int) -> dict[str, float]:
    """Measure here, without a JVM; planned once, as Spark does."""

    def drain(*names: str, view: str = "snapshot") -> Callable[[], None]:
        tasks = [
            task
            for name in names
            for task in read(parse({"path": str(folder / name), "view": view}))
        ]

        def run() -> None:
            for task in tasks:
                for _ in task.batches():
                    pass

        return run

    bodies = (
        msgpack.packb(row)
        for task in read(parse({"path": str(folder / "store"), "view": "changes"}))
        for batch in task.batches()
        for row in zip(*_plain(batch), strict=True)
    )
    updates = b"".join(_FRAME.pack(len(body), crc32c(body)) + body for body in bodies)
    measures = {
        "process": drain("store"),
        "three copies": drain("store", "copy0", "copy1"),
        "per update": lambda: decode_one_by_one(updates),
        "decode": drain("store", view="changes"),
        "process load": lambda: bulk_load(folder, Runner(), 1),
    }
    return best(measures, rounds)


def bulk_load(folder: Path, runner: Runner, files: int) -> None:
    """Make a load of the data of the store."""
    given = {"path": str(folder / "load"), "namespace": "bench", "partitions": "64"}
    loads.load(str(folder / "snapshot.parquet"), given, runner, files=files, replace=True)


_FRAME = struct.Struct("<II")


def _plain(batch: pa.RecordBatch) -> list[list[Any]]:
    """The columns of changes, times as numbers."""
    *others, times = batch.columns
    return [column.to_pylist() for column in (*others, times.cast(pa.int64()))]


def decode_one_by_one(updates: bytes) -> None:
    """What a log of frames with a CRC and a msgpack of one update each would cost."""
    kinds = columns.arrow_schema(columns.CHANGES)
    rows: list[Any] = []
    at = 0
    while at < len(updates):
        length, crc = _FRAME.unpack_from(updates, at)
        body = updates[at + _FRAME.size : at + _FRAME.size + length]
        if crc32c(body) != crc:
            raise ValueError(f"damage at {at}")
        at += _FRAME.size + length
        rows.append(msgpack.unpackb(body))
        if len(rows) == columns.BATCH_ROWS or at == len(updates):
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), kinds, strict=True)
            ]
            pa.RecordBatch.from_arrays(arrays, schema=kinds)
            rows.clear()


# ------------------------------------------------------------------------------------ side by side


def peak(folder: Path, view: str) -> None:
    """Read a view in one task after the other; print the most anonymous memory, in KiB."""
    most = 0
    for task in read(parse({"path": str(folder), "view": view, "minPartitions": "4"})):
        for number, _ in enumerate(task.batches()):
            if number % 8 == 0:
                status = Path("/proc/self/status").read_text("ascii")
                most = max(most, int(status.split("RssAnon:")[1].split()[0]))
    print(most)


def peaks(folder: Path) -> dict[str, float]:
    """The memory that reading takes, by view and store, each in a process of its own; MiB."""
    found = {}
    for view, _, _ in FLAT:
        for name in ("store", "quarter"):
            command = [sys.executable, __file__, "--dir", str(folder / name), "--peak", view]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[f"{view} {name}"] = int(done.stdout) / 1024
    return found


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """All measurements: those of two cores by their names, those of one with a 1 behind."""
    found = in_process(folder, rounds)
    for cores, behind in ((2, ""), (1, " 1")):
        command = [sys.executable, __file__, "--child", str(cores), "--rounds", str(rounds)]
        done = subprocess.run(
            [*command, "--dir", str(folder)], stdout=subprocess.PIPE, text=True, check=True
        )
        taken = json.loads(done.stdout.splitlines()[-1])
        found |= {name + behind: seconds for name, seconds in taken.items()}
    return found


def lines(found: dict[str, float], memory: dict[str, float], records: int) -> Iterator[str]:
    """The page's table."""
    yield f"Taken with `.venv/bin/python benchmarks/spark.py --write`: {records:,} records of"
    yield f"16 + 100 bytes, {os.cpu_count()} cores, transactions of {TRANSACTION} updates."
    yield ""
    rows = []
    for name, what, (upper, lower), target in TARGETS:
        ratio = found[upper] / found[lower]
        passed = ratio <= target if target > 0 else ratio >= -target
        demand = f"<= {target:g}" if target > 0 else f">= {-target:g}"
        rows.append((name, what, f"{ratio:.2f}x", demand, "pass" if passed else "fail"))
    for view, what, target in FLAT:
        all_of_it, quarter = memory[f"{view} store"], memory[f"{view} quarter"]
        reached = f"{all_of_it:.0f} / {quarter:.0f} MiB"
        passed = all_of_it <= target * quarter
        rows.append(
            (f"memory, {view}", what, reached, f"<= {target:g}x", "pass" if passed else "fail")
        )
    yield from table(("row", "time of ... over ...", "reached", "must", "verdict"), rows)
    yield ""
    counted = {name: seconds for name, seconds in found.items() if not name.startswith("three")}
    yield from table(
        ("measurement", "seconds", "rows per second"),
        [
            (name, f"{seconds:.2f}", f"{records * (3 if 'verify' in name else 1) / seconds:,.0f}")
            for name, seconds in counted.items()
        ],
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Compare the pipeline with Parquet.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="a folder for the data")
    parser.add_argument("--write", action="store_true", help="write docs/spark.md")
    parser.add_argument("--peak", metavar="VIEW", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, metavar="CORES", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        peak(arguments.dir, arguments.peak)
        return
    if arguments.child:
        print(json.dumps(in_spark(arguments.dir, arguments.child, arguments.rounds)))
        return
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir or ROOT / "build") as name:
        prepare(Path(name), arguments.records)
        found = measure(Path(name), arguments.rounds)
        text = "\n".join(lines(found, peaks(Path(name)), arguments.records))
    print(text)
    if arguments.write:
        page = DOCUMENT.read_text()
        before, _, rest = page.partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
