"""A process whose main thread is interrupted by signals at random moments, beside four that commit.

Every other time two come at once.

Usage: python storm_worker.py STORE SEED SIGNALS DURABILITY

It goes on after each signal, opens the store again if that stopped, and compares what it finds with
what it was told.  Prints one JSON object; anything that is wrong stands under ``problems``.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import os
import queue
import random
import signal
import sys
import threading
from typing import Any

import tidelog
from tidelog.codecs import I64, Str
from tidelog.engine.api.database import session_of
from tidelog.errors import ClosedError, CommitUnknownError, ReadOnlyError, TidelogError
from tidelog.testing import check_store

WAIT = 60.0
KINDS = (
    "put", "tx", "locked", "incr", "many", "sync", "checkpoint", "snapshot", "big", "reopen",
    "scan", "map",
)  # fmt: skip


class Alarm(BaseException):
    """What the handler of the signal raises."""


class Storm:
    """The store, what the program was told of it, and its threads."""

    def __init__(self, path: str, seed: int, durability: Any) -> None:
        self.path = path
        self.durability = durability
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.told = dict.fromkeys(("puts", "locked", "run", "many"), 0)
        self.unsure = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.mine: dict[str, int] = {}
        self.armed = False
        self.pairs: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.open()

    def open(self) -> None:
        self.db = tidelog.open(
            self.path,
            partitions=4,
            durability=self.durability,
            segment_bytes=256 << 10,
            checkpoint_bytes=256 << 10,
            lock_timeout=2.0,
        )

    def numbers(self) -> Any:
        return self.db.map("n", key=Str, value=I64)

    # ------------------------------------------------------------------ the other threads

    def work(self, kind: str) -> None:
        step = 0
        while not self.stop.is_set():
            step += 1
            try:
                self.once(kind, step)
            except (ReadOnlyError, ClosedError):
                self.stop.wait(0.001)  # until the main thread has opened it again
            except CommitUnknownError:
                self.unsure += 1
            except TidelogError as error:
                self.counts[type(error).__name__] += 1
            except BaseException as error:
                self.problems.append(f"{kind}: {error!r}")
                raise
            else:
                self.told[kind] += 1

    def once(self, kind: str, step: int) -> None:
        n = self.numbers()
        if kind == "puts":
            n[f"put {step % 50}"] = step
        elif kind == "many":
            n.update_many({"one": step, "other": step})
        elif kind == "locked":
            with self.db.transaction("pessimistic") as tx:
                tx[n]["locked"] = tx[n].get("locked", 0) + 1
        else:
            self.db.run(lambda tx: tx[n].__setitem__("run", tx[n].get("run", 0) + 1))

    # ------------------------------------------------------------------ the main thread

    def do(self, step: int) -> None:
        """Make one call of the main thread, under an alarm."""
        kind = self.random.choice(KINDS)
        key = f"mine {step % 20}"
        delay = self.random.choice((3e-4, 5e-3)) * self.random.random() + 1e-5
        try:
            try:
                self.armed = True
                if step % 2:
                    self.pairs.put(delay)
                else:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                self.call(kind, key, step)
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            self.counts["signals"] += 1
        except (ReadOnlyError, ClosedError):
            self.counts["stops"] += 1
        except TidelogError as error:
            self.counts[type(error).__name__] += 1
        else:
            if kind in ("put", "tx", "locked", "many", "big"):
                self.mine[key] = step
            return
        if session_of(self.db).open_state.closed is not None:
            self.reopen()
        self.pass_by(step)
        self.settle(key, step)

    def call(self, kind: str, key: str, step: int) -> None:
        n = self.numbers()
        if kind == "put":
            n[key] = step
        elif kind == "tx":
            with self.db.transaction() as tx:
                tx[n].get("run")
                tx[n][key] = step
        elif kind == "locked":
            with self.db.transaction("pessimistic") as tx:
                tx[n].get(key)
                tx[n][key] = step
        elif kind == "incr":
            n.incr("mine too")
        elif kind == "many":
            n.update_many({key: step, "last": step})
        elif kind == "sync":
            self.db.sync()
        elif kind == "checkpoint":
            self.db.checkpoint()
        elif kind == "reopen":
            self.reopen()
        elif kind == "scan":
            assert len(list(n.range(limit=30))) <= 30
        elif kind == "map":
            self.db.map(f"map {step}", key=Str, value=I64)["x"] = step
            self.db.drop(f"map {step}")
        elif kind == "big":
            n[key] = step
            self.db.map("big", key=Str, value=Str)[key] = "x" * 5_000
        else:
            with self.db.snapshot() as snapshot:
                pairs = dict(snapshot[n].items())
                if pairs.get("one") != pairs.get("other"):
                    self.problems.append("half a transaction in a snapshot")

    def send_pairs(self) -> None:
        """Send two signals at once: the second comes where the first is being made good."""
        while not self.stop.wait(self.pairs.get()):
            for number in (signal.SIGALRM, signal.SIGUSR1):
                os.kill(os.getpid(), number)

    def pass_by(self, step: int) -> None:
        """Commit behind whatever was on its way when the interrupted call gave up waiting."""
        try:
            self.numbers()["fence"] = step
        except (ReadOnlyError, ClosedError):
            self.counts["stops"] += 1
            self.reopen()
        except TidelogError as error:
            self.counts[type(error).__name__] += 1

    def settle(self, key: str, step: int) -> None:
        """An interrupted call happened, or it did not."""
        found = self.numbers().get(key)
        if found not in (self.mine.get(key), step):
            self.problems.append(f"{key} is {found}, not {self.mine.get(key)} or {step}")
        if found is not None:
            self.mine[key] = found

    def reopen(self) -> None:
        self.db.close()
        self.open()

    def run(self, signals: int) -> None:
        threads = [threading.Thread(target=self.work, args=(kind,)) for kind in self.told]
        for thread in [*threads, threading.Thread(target=self.send_pairs)]:
            thread.daemon = True
            thread.start()
        step = 0
        while self.counts["signals"] < signals and not self.problems:
            step += 1
            faulthandler.dump_traceback_later(WAIT, exit=True)
            self.do(step)
        faulthandler.dump_traceback_later(WAIT, exit=True)
        gc.collect()
        self.stop.set()
        self.pairs.put(0.0)
        for thread in threads:
            thread.join()
        self.counts["steps"] = step
        for _ in range(2):
            self.check()
            self.reopen()
        self.db.close()
        faulthandler.cancel_dump_traceback_later()
        self.problems += check_store(self.path)

    def check(self) -> None:
        found = dict(self.numbers().items())
        for name in ("locked", "run"):
            told = self.told[name]
            if not told <= found.get(name, 0) <= told + self.unsure:
                self.problems.append(f"{name} is {found.get(name)}, {told} were told")
        for key, value in self.mine.items():
            if found.get(key) != value:
                self.problems.append(f"{key} is {found.get(key)}, {value} was told")


def main(path: str, seed: str, signals: str, durability: str) -> None:
    storm = Storm(path, int(seed), durability)

    def handler(_number: int, _frame: object) -> None:
        if storm.armed:
            raise Alarm

    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, handler)
    storm.run(int(signals))
    print(json.dumps({"counts": storm.counts, "told": storm.told, "problems": storm.problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
