"""The workloads: what is done to one peer, in a process of its own, and what is measured.

A measurement is a function from a `Job` to one figure per row of its workload.  It opens the peer,
makes its data, and times only what the row names: neither opening (but for `h`) nor closing, nor
the making of keys.  Keys are 16 random bytes, values 100 random bytes, both made from a seed, so
that every peer gets the same ones.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeVar
from uuid import UUID

from peers import COUNTERS, Pair, Store, open_store, open_writer

TIDELOG = ("tidelog-1", "tidelog-16")
PEERS = ("lmdb", "sqlite", "rocksdict", "plyvel")
SKETCH = "sketch"
ALL = ("raw-append", *PEERS, *TIDELOG)

K = TypeVar("K")

Shares = list[list[Pair]]
"""Which pairs each task puts, again and again."""

LOADED_STATES = ("copy", "shared", "killed")
BATCH = 10_000
MULTI = 100
KEY_BYTES = 16
VALUE_BYTES = 100
RECORD_BYTES = KEY_BYTES + VALUE_BYTES
PARTITIONS, MEMBERS, BACKUPS = 20_000, 100, 2  # of the cluster that is assigned
LOADED, WRITTEN = 1, 2  # seeds: of the records that are there already, and of those put


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything; `seconds` is the length of a measurement that has no count."""

    records: int = 1_000_000
    records_small: int = 200_000
    lookups: int = 500_000
    seconds: float = 1.0


QUICK = Scale(records=100_000, records_small=20_000, lookups=50_000, seconds=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of one peer: its directory, the scale, and how many write at once."""

    peer: str
    path: Path
    scale: Scale
    writers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report."""

    name: str
    title: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Rows that one measurement yields, who takes part, and the state of the store before it.

    A store is `empty`, a fresh `copy` of a small loaded one, the large loaded one `shared` by all
    rounds, which only read it, or a fresh copy of one that was `killed` with all in its log.
    `writers` is the number of threads or tasks, for all peers or for each by name.
    """

    name: str
    rows: tuple[Row, ...]
    peers: tuple[str, ...]
    state: Literal["empty", "copy", "shared", "killed"]
    measure: Callable[[Job], Sequence[float]]
    writers: int | dict[str, int] = 1

    def writers_of(self, peer: str) -> int:
        return self.writers if isinstance(self.writers, int) else self.writers[peer]


# ------------------------------------------------------------------------------------------- data


def keys_of(count: int, seed: int) -> list[bytes]:
    return _cut(random.Random(f"keys {seed}").randbytes(count * KEY_BYTES), KEY_BYTES)


def pairs_of(count: int, seed: int) -> list[Pair]:
    values = random.Random(f"values {seed}").randbytes(count * VALUE_BYTES)
    return list(zip(keys_of(count, seed), _cut(values, VALUE_BYTES), strict=True))


def batches_of(pairs: list[Pair]) -> list[list[Pair]]:
    return [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)]


def streamed_batches(count: int, seed: int) -> Iterator[list[Pair]]:
    """Batches made when they are asked for, so that only one is in memory."""
    for at in range(0, count, BATCH):
        yield pairs_of(min(BATCH, count - at), seed + at)


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _quiet_collector() -> None:
    """Keep the garbage collector from walking the benchmark's own data over and over."""
    gc.collect()
    gc.freeze()


# --------------------------------------------------------------------------------- durable writes


def durable_puts(job: Job) -> Sequence[float]:
    """Durable puts per second, of one or of several threads."""
    pairs = pairs_of(20_000, WRITTEN)
    writer = open_writer(job.peer, job.path, "durable")
    _quiet_collector()
    rate = (_from_threads if job.writers > 1 else _alone)(writer.put, pairs, job)
    writer.close()
    return (rate,)


def durable_transactions(job: Job) -> Sequence[float]:
    """Durable transactions of five keys per second."""
    pairs = pairs_of(20_000, WRITTEN)
    groups = [pairs[at : at + 5] for at in range(0, len(pairs), 5)]
    writer = open_writer(job.peer, job.path, "durable")
    _quiet_collector()
    begin = perf_counter()
    end = begin + job.scale.seconds
    for done, group in enumerate(cycle(groups), 1):  # noqa: B007
        writer.transact(group)
        if perf_counter() >= end:
            break
    rate = done / (perf_counter() - begin)
    writer.close()
    return (rate,)


def _alone(put: Callable[[bytes, bytes], object], pairs: list[Pair], job: Job) -> float:
    begin = perf_counter()
    return puts_until(begin + job.scale.seconds, put, pairs) / (perf_counter() - begin)


def puts_until(end: float, put: Callable[[K, bytes], object], pairs: list[tuple[K, bytes]]) -> int:
    done = 0
    for key, value in cycle(pairs):
        put(key, value)
        done += 1
        if perf_counter() >= end:
            break
    return done


def _from_threads(put: Callable[[bytes, bytes], object], pairs: list[Pair], job: Job) -> float:
    ready = threading.Barrier(job.writers + 1)
    shares = [pairs[number :: job.writers] for number in range(job.writers)]

    def work(share: list[Pair]) -> int:
        ready.wait()
        return puts_until(perf_counter() + job.scale.seconds, put, share)

    with ThreadPoolExecutor(job.writers) as pool:
        counts = [pool.submit(work, share) for share in shares]
        ready.wait()
        begin = perf_counter()
        done = sum(count.result() for count in counts)
        return done / (perf_counter() - begin)


def increments(job: Job) -> Sequence[float]:
    """Durable increments of one key per second, of one or of several threads; none may be lost."""
    counter = COUNTERS[job.peer](job.path)
    done = [0] * job.writers
    ready = threading.Barrier(job.writers)
    _quiet_collector()

    def work(number: int) -> None:
        ready.wait()
        end = perf_counter() + job.scale.seconds
        while perf_counter() < end:
            counter.increment()
            done[number] += 1

    begin = perf_counter()
    if job.writers == 1:
        work(0)
    else:
        with ThreadPoolExecutor(job.writers) as pool:
            list(pool.map(work, range(job.writers)))
    rate = sum(done) / (perf_counter() - begin)
    if counter.count() != sum(done):
        raise RuntimeError(f"{job.peer} counted {counter.count()} of {sum(done)} increments")
    counter.close()
    return (rate,)


def trio_puts(job: Job) -> Sequence[float]:
    """Durable puts per second: of Trio tasks for Tidelog, of threads for everybody else."""
    if job.peer not in (*TIDELOG, SKETCH):
        return durable_puts(job)

    import trio

    if job.peer == SKETCH:
        from sketch import from_tasks

        pairs = pairs_of(20_000, WRITTEN)
        _quiet_collector()
        return (trio.run(from_tasks, job.path, pairs, job.writers, job.scale.seconds),)
    _quiet_collector()
    return (trio.run(_from_tasks, job, _under_trio),)


def asyncio_puts(job: Job) -> Sequence[float]:
    """Durable puts per second: of asyncio's tasks for Tidelog, of threads for everybody else."""
    if job.peer not in TIDELOG:
        return durable_puts(job)

    import asyncio

    _quiet_collector()
    return (asyncio.run(_from_tasks(job, _under_asyncio)),)


async def _under_trio(work: Callable[[list[Pair]], Awaitable[None]], shares: Shares) -> None:
    import trio

    async with trio.open_nursery() as nursery:
        for share in shares:
            nursery.start_soon(work, share)


async def _under_asyncio(work: Callable[[list[Pair]], Awaitable[None]], shares: Shares) -> None:
    import asyncio

    await asyncio.gather(*map(work, shares))


async def _from_tasks(
    job: Job,
    together: Callable[[Callable[[list[Pair]], Awaitable[None]], Shares], Awaitable[None]],
) -> float:
    from tidelog import aio

    pairs = pairs_of(20_000, WRITTEN)
    partitions = int(job.peer.rpartition("-")[2])
    done = 0
    async with aio.open(job.path, partitions=partitions) as db:
        table = db.map("bench")
        begin = perf_counter()
        end = begin + job.scale.seconds

        async def work(share: list[Pair]) -> None:
            nonlocal done
            for key, value in cycle(share):
                await table.set(key, value)
                done += 1
                if perf_counter() >= end:
                    break

        await together(work, [pairs[number :: job.writers] for number in range(job.writers)])
        return done / (perf_counter() - begin)


# ------------------------------------------------------------------------ relaxed writes and loads


def relaxed_puts(job: Job) -> Sequence[float]:
    """Single puts per second that a kill does not lose and a power cut may."""
    pairs = pairs_of(job.scale.records_small, WRITTEN)
    writer = open_writer(job.peer, job.path, "relaxed")
    _quiet_collector()
    put = writer.put
    begin = perf_counter()
    for key, value in pairs:
        put(key, value)
    rate = len(pairs) / (perf_counter() - begin)
    writer.close()
    return (rate,)


def load_at_random(job: Job) -> Sequence[float]:
    """Pairs loaded per second, and after a checkpoint the disk's bytes per record and byte."""
    return _load(job, pairs_of(job.scale.records, LOADED))


def load_in_order(job: Job) -> Sequence[float]:
    """Pairs loaded per second when they come in key order, from memory in that order."""
    keys, values = map(b"".join, zip(*sorted(pairs_of(job.scale.records, LOADED)), strict=True))
    pairs = list(zip(_cut(keys, KEY_BYTES), _cut(values, VALUE_BYTES), strict=True))
    return _load(job, pairs)[:1]


def _load(job: Job, pairs: list[Pair]) -> Sequence[float]:
    batches = batches_of(pairs)
    device_before, process_before = device_bytes_written(job.path.parent), process_bytes_written()
    store = open_store(job.peer, job.path, "load")
    _quiet_collector()
    begin = perf_counter()
    store.load(batches)
    rate = len(pairs) / (perf_counter() - begin)
    store.settle()
    os.sync()
    device = device_bytes_written(job.path.parent) - device_before
    process = process_bytes_written() - process_before
    on_disk = disk_bytes(job.path)
    store.close()
    loaded = len(pairs) * RECORD_BYTES
    return rate, on_disk / len(pairs), device / loaded, process / loaded


def disk_bytes(path: Path) -> int:
    """The bytes that a store takes on disk, without the folder of Tidelog's log."""
    files = (file for file in path.rglob("*") if file.is_file())
    return sum(file.stat().st_blocks * 512 for file in files if file.parent.name != "wal")


def process_bytes_written() -> int:
    """What this process has sent towards the disk, as the kernel counts it when pages get dirty."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])


def device_bytes_written(path: Path) -> float:
    """What the device under a path has written, for everybody; not a number where none is known."""
    device = path.stat().st_dev
    counts = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(counts.read_text().split()[6]) * 512.0 if counts.exists() else float("nan")


# ------------------------------------------------------------------------------------------ reads


def point_gets(job: Job) -> Sequence[float]:
    """Random gets per second, one by one and a hundred at a time."""
    keys = keys_of(job.scale.records, LOADED)
    lookups = random.Random(job.scale.lookups).choices(keys, k=job.scale.lookups)
    groups = [lookups[at : at + MULTI] for at in range(0, len(lookups), MULTI)]
    store = open_store(job.peer, job.path, "durable")
    if any(len(store.get(key) or b"") != VALUE_BYTES for key in lookups):
        raise RuntimeError(f"{job.peer} lost a record")
    _quiet_collector()
    get, get_many = store.get, store.get_many
    begin = perf_counter()
    for key in lookups:
        get(key)
    middle = perf_counter()
    for group in groups:
        get_many(group)
    end = perf_counter()
    store.close()
    return len(lookups) / (middle - begin), len(lookups) / (end - middle)


def scans(job: Job) -> Sequence[float]:
    """Records scanned per second: all in key order, and by every prefix of one byte."""
    prefixes = [bytes([first]) for first in range(256)]
    random.Random(0).shuffle(prefixes)
    store = open_store(job.peer, job.path, "durable")
    _quiet_collector()
    whole = _scan(store, (b"",), job.scale.records)
    by_prefix = _scan(store, prefixes, job.scale.records)
    store.close()
    return whole, by_prefix


def _scan(store: Store, prefixes: Sequence[bytes], expected: int) -> float:
    seen = 0
    begin = perf_counter()
    for prefix in prefixes:
        for _key, _value in store.scan(prefix):
            seen += 1
    rate = seen / (perf_counter() - begin)
    if seen != expected:
        raise RuntimeError(f"{seen} records were scanned, {expected} are there")
    return rate


# --------------------------------------------------------------------------------------- recovery


def load_and_die(job: Job) -> None:
    """Leave a store killed with all its records in the log; never returns."""
    writer = open_writer(job.peer, job.path, "log")  # kept: a peer that is dropped closes itself
    writer.load(streamed_batches(job.scale.records, LOADED))
    os.kill(os.getpid(), signal.SIGKILL)


def reopen(job: Job) -> Sequence[float]:
    """Seconds from opening a killed store to its first get."""
    first, *_, last = (batch[-1] for batch in streamed_batches(job.scale.records, LOADED))
    _quiet_collector()
    begin = perf_counter()
    store = open_store(job.peer, job.path, "durable" if job.peer in TIDELOG else "log")
    found = store.get(last[0])
    seconds = perf_counter() - begin
    if found != last[1] or store.get(first[0]) != first[1]:
        raise RuntimeError(f"{job.peer} lost a record")
    store.close()
    return (seconds,)


# ------------------------------------------------------------------------- memory, single functions


def prepare(job: Job) -> None:
    """Load a store and leave it settled and closed."""
    store = open_store(job.peer, job.path, "load")
    store.load(batches_of(pairs_of(job.scale.records, LOADED)))
    store.settle()
    store.close()


def memory_load(job: Job) -> None:
    """Load as the memory rows do, from batches that are made one at a time."""
    store = open_store(job.peer, job.path, "load")
    store.load(streamed_batches(job.scale.records, LOADED))
    store.close()


def memory_reopen(job: Job) -> None:
    """Open a store, whatever is in its log, and get from it once."""
    store = open_store(job.peer, job.path, "load")
    store.get(b"")
    store.close()


def memory_scan(job: Job) -> None:
    """Scan a loaded store from end to end."""
    store = open_store(job.peer, job.path, "load")
    _scan(store, (b"",), job.scale.records)
    store.close()


def counter_updates(job: Job) -> Sequence[float]:
    """Microseconds of one in-order update of a partition's counter."""
    from tidelog.tx import PartitionUpdateCounter

    update = PartitionUpdateCounter().update
    begin = perf_counter()
    for number in range(job.scale.lookups):
        update(number, 1)
    return ((perf_counter() - begin) / job.scale.lookups * 1e6,)


def rows_of_a_cluster(job: Job) -> Sequence[float]:
    """Seconds to assign and plan all rows of a cluster: the first ones, and those after a join."""
    from tidelog.affinity import assign
    from tidelog.rebalance import plan_migrations, prioritize

    members = [str(UUID(int=number)) for number in range(MEMBERS + 1)]
    _quiet_collector()
    begin = perf_counter()
    rows = assign(members[:-1], PARTITIONS, BACKUPS)
    first = [prioritize(plan_migrations([], row)) for row in rows]
    middle = perf_counter()
    after = assign(members, PARTITIONS, BACKUPS, rows)
    plans = [prioritize(plan_migrations(*pair)) for pair in zip(rows, after, strict=True)]
    end = perf_counter()
    if sum(map(len, first)) != PARTITIONS * (BACKUPS + 1) or not any(plans):
        raise RuntimeError("the plans do not have a step for each copy")
    return middle - begin, end - middle


# ---------------------------------------------------------------------------------- who does what


def _rate(name: str, title: str) -> tuple[Row]:
    return (Row(name=name, title=title, unit="/s"),)


def _tasks(loop: str, tasks: int, rival: str, threads: int) -> Workload:
    name = f"b-{loop.lower()}-{tasks}"
    title = f"durable puts, {tasks} {loop} task{'s' * (tasks > 1)} ({rival}: {threads} threads)"
    of_tasks = (*TIDELOG, SKETCH) if loop == "Trio" else TIDELOG
    return Workload(
        name=name,
        rows=_rate(name, title.replace("1 threads", "one thread")),
        peers=(rival, *of_tasks),
        state="copy",
        measure=trio_puts if loop == "Trio" else asyncio_puts,
        writers={rival: threads} | dict.fromkeys(of_tasks, tasks),
    )


def _threads(count: int) -> Workload:
    name = f"b-threads-{count}"
    rows = _rate(name, f"durable puts, {count} threads")
    return Workload(
        name=name, rows=rows, peers=ALL, state="copy", measure=durable_puts, writers=count
    )


def _increments(threads: int) -> Workload:
    name = f"incr-{threads}"
    return Workload(
        name=name,
        rows=_rate(name, f"durable increments of one key, {threads} thread{'s' * (threads > 1)}"),
        peers=("sqlite", *TIDELOG),
        state="empty",
        measure=increments,
        writers=threads,
    )


WORKLOADS = (
    Workload(
        name="a",
        rows=_rate("a", "one durable put per commit, one thread"),
        peers=(*ALL, SKETCH),
        state="copy",
        measure=durable_puts,
    ),
    Workload(
        name="g",
        rows=_rate("g", "durable transaction of 5 keys, one thread"),
        peers=(*ALL, SKETCH),
        state="copy",
        measure=durable_transactions,
    ),
    *(
        _tasks(loop, *against)
        for loop in ("Trio", "asyncio")
        for against in (
            (1, "raw-append", 1),
            (8, "plyvel", 8),
            (32, "plyvel", 32),
            (128, "plyvel", 32),
        )
    ),
    _threads(8),
    _threads(32),
    _increments(1),
    _increments(32),
    Workload(
        name="c",
        rows=_rate("c", "relaxed single puts, none lost by kill -9"),
        peers=(*ALL, SKETCH),
        state="copy",
        measure=relaxed_puts,
    ),
    Workload(
        name="d",
        rows=(
            *_rate("d", "load in random order, durable at the end"),
            Row(
                name="i-disk",
                title="disk bytes per record after d and a checkpoint or compaction",
                unit="B",
            ),
            Row(
                name="i-written", title="bytes the device wrote for that per byte loaded", unit="x"
            ),
            Row(name="i-process", title="the same as counted for the process", unit="x"),
        ),
        peers=("lmdb-nosync", *PEERS, *TIDELOG, SKETCH),
        state="empty",
        measure=load_at_random,
    ),
    Workload(
        name="ds",
        rows=_rate("ds", "load in key order, durable at the end"),
        peers=("lmdb-nosync", *PEERS, *TIDELOG, SKETCH),
        state="empty",
        measure=load_in_order,
    ),
    Workload(
        name="e",
        rows=(
            *_rate("e", "random point get"),
            *_rate("e-multi", "multi-get of 100 (lmdb, sqlite, plyvel: gets in a loop)"),
        ),
        peers=(*PEERS, *TIDELOG, SKETCH),
        state="shared",
        measure=point_gets,
    ),
    Workload(
        name="f",
        rows=(
            *_rate("f", "ordered scan of a whole map"),
            *_rate("f-prefix", "ordered scans by a prefix of one byte"),
        ),
        peers=(*PEERS, *TIDELOG, SKETCH),
        state="shared",
        measure=scans,
    ),
    Workload(
        name="h",
        rows=(Row(name="h", title="reopen after kill -9, all records in the log", unit="s"),),
        peers=("rocksdict", "plyvel", *TIDELOG),
        state="killed",
        measure=reopen,
    ),
    Workload(
        name="counter",
        rows=(Row(name="counter", title="one in-order counter update", unit="us"),),
        peers=("tidelog-16",),
        state="empty",
        measure=counter_updates,
    ),
    Workload(
        name="rows",
        rows=(
            Row(
                name="rows",
                title="20,000 partitions, 100 members, 2 backups: first rows, and their plans",
                unit="s",
            ),
            Row(name="rows-join", title="the rows and plans when one member joins", unit="s"),
        ),
        peers=("tidelog-16",),
        state="empty",
        measure=rows_of_a_cluster,
    ),
)
