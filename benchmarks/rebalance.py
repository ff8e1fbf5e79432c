"""Copies that come back: by history beside in full, and a full copy of everything beside `cp`.

The part of ``cluster.py`` in which a member of three is killed, others write meanwhile, and it is
started again.  All three run on this machine and its one disk.

    history    of one partition 1 % was changed; then again, and the log has that no more
    full       nothing of what was missed is in any log; puts go on meanwhile
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from threading import Event as StopEvent
from time import monotonic
from typing import Any

import lmdb
from loads import cpu_ns
from members import MEMBERS, Members, members_up
from report import table
from tuned_member import SentBack, forget_sent, read_sent

import tidelog
from tidelog.affinity.partitions import Space, partitions_of
from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.data.partition_store import mark_key
from tidelog.engine.data.stored import TRAILER_SIZE, pack_prefix

MIB = 1 << 20
OPTIONS = {
    "segment_bytes": 8 * MIB,
    "retain_bytes": 24 * MIB,
    "checkpoint_bytes": 64 * MIB,
    "checkpoint_interval": 2,
}
"""With these a log soon lacks what was written while a member was away."""
KEY_BYTES = 16
PART_BYTES, PART_VALUE_BYTES = 256 * MIB, 1000
"""Of the partition that comes back by history and in full."""
CHANGED = 0.01
WAYS, COPIES = 3, 5
"""Ways back by history, and copies of everything alone, of which the middle one counts."""
SIZES = ((1 << 30, 1000), (128 * MIB, 100))
"""Bytes of keys and values, and of a value, of full copies of everything."""
PARTITIONS = 64
PUTTERS = 8
BEFORE_S = AFTER_S = 5.0
SETTLED_S = 2.0
"""Seconds behind a return that count neither to it nor to what comes after."""
AWAY = 2
"""The place of the member that goes and comes back."""
BATCH_BYTES = 1 * MIB
WRITERS = 4
CUT_BYTES = 80 * MIB
"""Written so that what came before goes from the logs."""
STORE_BYTES = 15 * MIB
"""What a transaction of LMDB alone has: about as much as those of a copy that goes on alone."""
LOOK_S, LOOKS_S = 0.02, 0.1
"""Seconds between two looks of a short way back, and of a long one: what is measured may be so much
too long, and looks take processors."""
BYTES_MUST, TIME_MUST = 0.02, 0.10
RATIO_MUST, RATIO_AIM, P99_MUST = 0.15, 0.4, 3.0


@dataclass(frozen=True, slots=True)
class Return:
    """One way back: how long it took from the first word of a primary on, and what was sent."""

    seconds: float
    sent: int


@dataclass(frozen=True, slots=True)
class Full:
    """A full copy of everything: how long it took, beside `cp`, under puts, and in memory."""

    seconds: float
    cp_seconds: float
    lmdb_seconds: float
    """In which LMDB alone writes so many pairs into a new file, in as large transactions."""
    sent: int
    seconds_beside_puts: float
    p99_before: float
    """Of puts to the two members that are left."""
    p99_meanwhile: float
    p99_after: float
    """Of puts to all three."""
    anonymous: tuple[tuple[int, int], ...]
    """MiB of anonymous memory of each member, at most: in the first half of the time, and in the
    second."""
    cpu: tuple[float, ...]
    """Seconds for which each member computed meanwhile, the start of the copy among them."""
    resident: tuple[int, ...]
    """MiB of each member with mapped files, at most."""


@dataclass(slots=True)
class Figures:
    """One figure per round of each."""

    history: list[tuple[Return, Return]] = field(default_factory=list)
    full: dict[tuple[int, int], list[Full]] = field(default_factory=dict)


# ---------------------------------------------------------------------------------- what is done


@dataclass(slots=True)
class Data:
    """Keys of a map, by partition, and what is put under each."""

    keys: dict[int, list[bytes]]
    value: bytes
    put_many: Callable[[dict[bytes, bytes]], object]

    def batches(self, keys: dict[int, list[bytes]]) -> list[list[bytes]]:
        """Keys that one transaction writes: of one partition each, in any order."""
        size = max(BATCH_BYTES // (KEY_BYTES + len(self.value)), 1)
        found = [
            some[first : first + size]
            for some in keys.values()
            for first in range(0, len(some), size)
        ]
        random.Random(3).shuffle(found)
        return found

    def put(self, keys: dict[int, list[bytes]]) -> None:
        """Put some keys again, by several threads."""
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self._put, self.batches(keys)))

    def _put(self, batch: list[bytes]) -> None:
        """Put a batch, again if nobody knows what became of it: the log may be too young."""
        while True:
            with suppress(tidelog.errors.CommitUnknownError):
                self.put_many(dict.fromkeys(batch, self.value))
                return

    def some(self, share: float) -> dict[int, list[bytes]]:
        """A share of the keys of each partition, and one at least."""
        return {
            partition: keys[: max(int(len(keys) * share), 1)]
            for partition, keys in self.keys.items()
        }


@contextmanager
def data_in(up: Members, size: int, value_bytes: int) -> Iterator[Data]:
    """Put so many bytes of keys and values into a map of new members."""
    chance = random.Random(1)
    count, partitions = size // (KEY_BYTES + value_bytes), up.local.partitions
    keys = [chance.randbytes(KEY_BYTES) for _ in range(count)]
    by_partition: dict[int, list[bytes]] = {}
    for key, partition in zip(keys, partitions_of(keys, Space(0, partitions)), strict=True):
        by_partition.setdefault(partition, []).append(key)
    with tidelog.connect(up.url) as db:
        data = Data(by_partition, chance.randbytes(value_bytes), db.map("bench").update)
        data.put(by_partition)
        yield data


def cut_history(data: Data) -> None:
    """Write until the logs have nothing of what was written before."""
    share = CUT_BYTES / sum(map(len, data.keys.values())) / (KEY_BYTES + len(data.value))
    for _ in range(2):
        data.put(data.some(share / 2))
        time.sleep(2 * OPTIONS["checkpoint_interval"])


def come_back(
    up: Members, look_s: float, look: Callable[[], object] = lambda: None
) -> tuple[Return, SentBack]:
    """Start the member that is away, until it is everywhere in the sets again.

    Returns how long that took, and what was sent by history and in full.
    """
    others = [file for place, file in enumerate(up.files) if place != AWAY]
    for file in others:
        forget_sent(file)
    up.start(AWAY)
    while any(len(held.in_sync) < MEMBERS for held in up.held()):
        look()
        time.sleep(look_s)
    ended, sent = monotonic(), [read_sent(file) for file in others]
    began = min(one.began_ns for one in sent if one.began_ns)
    history, full = (sum(one[at] for one in sent) for at in (0, 1))
    return Return(ended - began / 1e9, history + full), SentBack(history, full, began)


def history_beside_full(folder: Path) -> tuple[Return, Return]:
    """Bring a copy back of which 1 % was changed: by history, and when the log has that no more.

    By history it comes back ``WAYS`` times, of which the middle one counts: each takes less than a
    checkpoint or a slow sync may take that happens to fall into it.
    """
    try:
        with (
            members_up(folder, backups=MEMBERS - 1, partitions=1, options=OPTIONS) as up,
            data_in(up, PART_BYTES, PART_VALUE_BYTES) as data,
        ):
            ways = []
            for _ in range(WAYS):
                time.sleep(2 * OPTIONS["checkpoint_interval"])
                up.kill(AWAY)
                data.put(data.some(CHANGED))
                way, sent = come_back(up, LOOK_S)
                if sent.full_bytes:
                    raise RuntimeError("it came back in full, and not by history")
                ways.append(way)
            by_history = sorted(ways, key=lambda way: way.seconds)[WAYS // 2]
            up.kill(AWAY)
            data.put(data.some(CHANGED))
            cut_history(data)
            in_full, sent = come_back(up, LOOK_S)
            _check_full(sent)
            return by_history, in_full
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def go_away(up: Members, data: Data) -> None:
    """Kill a member, and write until no log has what it has missed of each partition."""
    time.sleep(2 * OPTIONS["checkpoint_interval"])
    up.kill(AWAY)
    data.put(data.some(0))
    cut_history(data)


def full_copy(folder: Path, size: int, value_bytes: int) -> Full:
    """Bring a copy of everything back in full: ``COPIES`` times alone, and once beside puts.

    Behind each that is alone `cp` has its turn; of both the middle one counts.
    """
    try:
        with (
            members_up(folder, backups=MEMBERS - 1, partitions=PARTITIONS, options=OPTIONS) as up,
            data_in(up, size, value_bytes) as data,
        ):
            alone, of_cp = [], []
            for _ in range(COPIES):
                go_away(up, data)
                memory = Memory(up)
                way, sent = come_back(up, LOOKS_S, memory.look)
                _check_full(sent)
                alone.append((way, memory))
                of_cp.append(cp_of(folder, size))
            way, memory = sorted(alone, key=lambda one: one[0].seconds)[COPIES // 2]
            lmdb_seconds = lmdb_of(folder, size, value_bytes)
            go_away(up, data)
            with putting(up.url) as puts:
                time.sleep(BEFORE_S)
                began = monotonic()
                beside, sent_beside = come_back(up, LOOKS_S)
                ended = monotonic()
                time.sleep(SETTLED_S + AFTER_S)
            _check_full(sent_beside)
            since = sent_beside.began_ns / 1e9
            until = since + beside.seconds
            return Full(
                seconds=way.seconds,
                cp_seconds=median(of_cp),
                lmdb_seconds=lmdb_seconds,
                sent=way.sent,
                seconds_beside_puts=beside.seconds,
                p99_before=p99([s for at, s in puts if began - BEFORE_S < at < began - s]),
                p99_meanwhile=p99([s for at, s in puts if at + s > since and at < until]),
                p99_after=p99([s for at, s in puts if at > ended + SETTLED_S]),
                anonymous=memory.anonymous(),
                cpu=memory.cpu(),
                resident=memory.resident(),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_full(sent: SentBack) -> None:
    if not sent.full_bytes:
        raise RuntimeError("it came back by history, and not in full")


def cp_of(folder: Path, size: int) -> float:
    """Seconds in which `cp` copies so many bytes, and `sync` has them on the disk."""
    source, target = folder / "source", folder / "target"
    block = random.Random(4).randbytes(MIB)
    with open(source, "wb") as file:
        for _ in range(size // MIB):
            file.write(block)
        os.fsync(file.fileno())
    taken = []
    for _ in range(3):
        began = monotonic()
        subprocess.run(["cp", str(source), str(target)], check=True)
        subprocess.run(["sync", str(target)], check=True)
        taken.append(monotonic() - began)
        target.unlink()
    return median(taken)


def lmdb_of(folder: Path, size: int, value_bytes: int) -> float:
    """Seconds in which LMDB alone does what the data file of the copy has to take.

    A new file, which has the marks, takes pairs, partition by partition of two halves in turn, in
    transactions of ``STORE_BYTES``; nothing is sent, checked or served.
    """
    chance, value = random.Random(5), bytes(value_bytes + TRAILER_SIZE)
    each = size // (KEY_BYTES + value_bytes) // PARTITIONS
    parts = [
        sorted(pack_prefix(number, 16) + chance.randbytes(KEY_BYTES) for _ in range(each))
        for number in range(PARTITIONS)
    ]
    half, some = PARTITIONS // 2, STORE_BYTES // (len(parts[0][0]) + len(value))
    path = folder / "lmdb"
    with lmdb.open(str(path), map_size=max(4 * size, 1 << 30)) as env:
        with env.begin(write=True) as txn:
            for number in range(PARTITIONS):
                txn.put(mark_key(number), PartitionMark.empty().to_bytes())
        began = monotonic()
        for pair in zip(parts[:half], parts[half:], strict=True):
            for first in range(0, each, some):
                for part in pair:
                    _put_pairs(env, part[first : first + some], value)
        taken = monotonic() - began
    shutil.rmtree(path)
    return taken


def _put_pairs(env: lmdb.Environment, keys: list[bytes], value: bytes) -> None:
    with env.begin(write=True) as txn, txn.cursor() as cursor:
        cursor.putmulti([(key, value) for key in keys])


# ------------------------------------------------------------------------------- puts meanwhile


@contextmanager
def putting(url: str) -> Iterator[list[tuple[float, float]]]:
    """Let clients put in a process of their own; yields a list that has all puts behind the block.

    Of each it has when it began, by the monotonic clock, and how long it took.
    """
    context = multiprocessing.get_context("spawn")
    stop, (ours, theirs) = context.Event(), context.Pipe()
    process = context.Process(target=_put_until, args=(url, stop, theirs))
    process.start()
    puts: list[tuple[float, float]] = []
    try:
        ours.recv()
        yield puts
        stop.set()
        puts += ours.recv()
    finally:
        stop.set()
        process.join(30)


def _put_until(url: str, stop: StopEvent, told: Any) -> None:
    with tidelog.connect(url) as db:
        table = db.map("traffic")

        def put(number: int) -> list[tuple[float, float]]:
            chance, puts = random.Random(number), []
            keys = [chance.randbytes(KEY_BYTES) for _ in range(1000)]
            for key in cycle(keys):
                began = monotonic()
                table[key] = key * 6
                puts.append((began, monotonic() - began))
                if stop.is_set():
                    return puts
            return puts

        table[b"first"] = b"value"
        told.send("ready")
        with ThreadPoolExecutor(PUTTERS) as pool:
            told.send([one for some in pool.map(put, range(PUTTERS)) for one in some])


def p99(taken: Sequence[float]) -> float:
    """The 99th percentile of seconds."""
    return sorted(taken)[int(len(taken) * 0.99)]


# -------------------------------------------------------------------------------------- memory


class Memory:
    """The memory of members, look by look."""

    def __init__(self, up: Members) -> None:
        self._up = up
        self._looks: list[list[tuple[int, int]]] = []
        self._cpu: list[list[int]] = []

    def look(self) -> None:
        """Take what each member has now: anonymous, and in all."""
        self._looks.append([_memory_of(pid) for pid in self._up.pids])
        self._cpu.append([cpu_ns([pid]) for pid in self._up.pids])

    def cpu(self) -> tuple[float, ...]:
        """Seconds for which each member computed between the first look and the last."""
        first, last = self._cpu[0], self._cpu[-1]
        return tuple((end - begin) / 1e9 for begin, end in zip(first, last, strict=True))

    def anonymous(self) -> tuple[tuple[int, int], ...]:
        """MiB of each member: at most in the first half of the time, and in the second."""
        half = len(self._looks) // 2
        return tuple(
            (max(look[at][0] for look in self._looks[: half + 1]),
             max(look[at][0] for look in self._looks[half:]))
            for at in range(MEMBERS)
        )  # fmt: skip

    def resident(self) -> tuple[int, ...]:
        """MiB of each member at most, with mapped files."""
        return tuple(max(look[at][1] for look in self._looks) for at in range(MEMBERS))


def _memory_of(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) // 1024 for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------- a run


def rebalance_round(folder: Path, figures: Figures) -> None:
    """Measure everything once."""
    pair = history_beside_full(folder)
    figures.history.append(pair)
    print(f"by history {pair[0]}, in full {pair[1]}", file=sys.stderr, flush=True)
    for size, value_bytes in SIZES:
        full = full_copy(folder, size, value_bytes)
        figures.full.setdefault((size, value_bytes), []).append(full)
        print(f"{size / MIB:,.0f} MiB by {value_bytes}: {full}", file=sys.stderr, flush=True)


def page(figures: Figures, rounds: int, load: float) -> Iterator[str]:
    """The part of the page that is about copies that come back."""
    yield f"Taken with `benchmarks/cluster.py --only rebalance`, medians of {rounds} rounds; load"
    yield f"of the machine when it began: {load:.2f}."
    yield ""
    yield from table(
        (f"1 % of {PART_BYTES // MIB} MiB in one partition was changed", "by history", "in full",
         "beside", "must"),
        _history_rows(figures.history),
    )  # fmt: skip
    yield ""
    yield from table(
        ("full copy of everything, 64 partitions", *map(_name, figures.full), "must", "aim"),
        _full_rows(list(figures.full.values())),
    )
    yield ""
    yield from table(
        ("MiB of memory during that", *map(_name, figures.full)),
        _memory_rows(list(figures.full.values())),
    )


def _name(size: tuple[int, int]) -> str:
    return f"{size[0] // MIB:,} MiB, values of {size[1]:,} bytes"


def _history_rows(rounds: Sequence[tuple[Return, Return]]) -> Iterator[tuple[str, ...]]:
    parts: tuple[tuple[str, Callable[[Return], float], str, float], ...] = (
        ("MB sent", lambda way: way.sent / 1e6, ",.2f", BYTES_MUST),
        ("seconds", lambda way: way.seconds, ".2f", TIME_MUST),
    )
    for name, figure, form, must in parts:
        history, full = (median(figure(pair[at]) for pair in rounds) for at in (0, 1))
        ratio = median(figure(one) / figure(other) for one, other in rounds)
        verdict = "pass" if ratio <= must else "fail"
        yield (
            name,
            f"{history:{form}}",
            f"{full:{form}}",
            f"{ratio:.2%}",
            f"<= {must:.0%}: {verdict}",
        )


def _full_rows(columns: Sequence[Sequence[Full]]) -> Iterator[tuple[str, ...]]:
    sizes = [median(one.sent for one in rounds) for rounds in columns]
    ratios = [median(one.cp_seconds / one.seconds for one in rounds) for rounds in columns]
    slower, than_whole = (
        [median(one.p99_meanwhile / getattr(one, name) for one in rounds) for rounds in columns]
        for name in ("p99_before", "p99_after")
    )

    def row(name: str, figure: Callable[[Full], float], form: str) -> tuple[str, ...]:
        return (name, *(f"{median(map(figure, rounds)):{form}}" for rounds in columns), "", "")

    yield row("seconds", lambda one: one.seconds, ".2f")
    yield row("seconds of `cp` and `sync`", lambda one: one.cp_seconds, ".2f")
    yield row("seconds of LMDB alone", lambda one: one.lmdb_seconds, ".2f")
    yield ("MB sent", *(f"{size / 1e6:,.0f}" for size in sizes), "", "")
    yield (
        "rate beside `cp`", *(f"{ratio:.2f}x" for ratio in ratios),
        f">= {RATIO_MUST:g}: {'pass' if ratios[0] >= RATIO_MUST else 'fail'}", f"{RATIO_AIM:g}",
    )  # fmt: skip
    beside = [median(one.cp_seconds / one.lmdb_seconds for one in rounds) for rounds in columns]
    yield ("LMDB alone beside `cp`", *(f"{ratio:.2f}x" for ratio in beside), "", "")
    yield row(
        f"seconds beside puts of {PUTTERS} threads", lambda one: one.seconds_beside_puts, ".2f"
    )
    for place in range(MEMBERS):
        yield row(f"seconds of CPU, {_who(place)}", lambda one, at=place: one.cpu[at], ".2f")  # type: ignore[misc]
    yield row("p99 of puts before, two members, ms", lambda one: one.p99_before * 1e3, ".1f")
    yield row("p99 of puts meanwhile, ms", lambda one: one.p99_meanwhile * 1e3, ".1f")
    yield row("p99 of puts after, three members, ms", lambda one: one.p99_after * 1e3, ".1f")
    yield (
        "meanwhile beside before", *(f"{ratio:.2g}x" for ratio in slower),
        f"<= {P99_MUST:g}: {'pass' if slower[0] <= P99_MUST else 'fail'}", "",
    )  # fmt: skip
    yield ("meanwhile beside after", *(f"{ratio:.2g}x" for ratio in than_whole), "", "")


def _who(place: int) -> str:
    return "the copy" if place == AWAY else f"primary {place + 1}"


def _memory_rows(columns: Sequence[Sequence[Full]]) -> Iterator[tuple[str, ...]]:
    for place in range(MEMBERS):
        who = _who(place)
        for name, half in (("first half", 0), ("second half", 1)):
            yield (
                f"{who}, anonymous, {name}",
                *(
                    f"{median(one.anonymous[place][half] for one in rounds):,.0f}"
                    for rounds in columns
                ),
            )
        yield (
            f"{who}, with mapped files",
            *(f"{median(one.resident[place] for one in rounds):,.0f}" for rounds in columns),
        )
