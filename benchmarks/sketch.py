"""What a store like this could reach in Python: nothing but what no design can leave out.

The sketch writes the same records and frames as Tidelog, checks the same sums on reading and keeps
what is new in a dict above LMDB.  It has one thread, one partition and one namespace, and no
locks, snapshots, isolation, errors, segments, background work or recovery.  Where a target is
beyond the sketch, no amount of tuning in Python reaches it on the machine that took the figures;
where Tidelog is far behind it, tuning is left to do.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, islice, repeat
from operator import add
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, time_ns
from typing import Any, Literal

import lmdb
import msgpack
from crc32c import crc32c
from mmh3 import hash as murmur3

from tidelog.engine.data.stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    checked,
    pack_prefix,
    pack_trailer,
    stored_run,
)
from tidelog.wal.format import FRAME_MAGIC, log_seed, pack_covered, pack_frame_header
from tidelog.wal.records import pack_record_header, put_encoder, tx_body

Pair = tuple[bytes, bytes]

MAP_BYTES = 4 << 30
FILLED_BYTES = 64 << 20
FLUSH_UPDATES = 600_000
BLOCK = 512
NAMESPACE, EPOCH = 16, 1
ID_PREFIX = bytes(8)


class Sketch:
    """One log file, one dict, one LMDB file; used by one thread at a time."""

    def __init__(self, path: Path, mode: Literal["durable", "relaxed", "load", "log"]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._prefix = pack_prefix(0, NAMESPACE)
        self._env = lmdb.open(str(path), map_size=MAP_BYTES)
        self._reading = self._env.begin()
        self._overlay: dict[bytes, bytes] = {}
        self._pack = msgpack.Packer().pack
        self._seed = log_seed(bytes(16))
        self._number = 0
        self._position = 0
        os.makedirs(path / "wal", exist_ok=True)
        self._file = os.open(path / "wal" / "log", os.O_CREAT | os.O_RDWR, 0o600)
        if mode in ("durable", "relaxed"):
            for offset in range(0, FILLED_BYTES, 1 << 16):
                os.pwrite(self._file, bytes(1 << 16), offset)
            os.fsync(self._file)
        self._durable = mode == "durable"
        self.put = self._mapped_putter() if mode == "relaxed" else self._putter()
        self.get = self._getter()

    def _frame(self, payload: bytes) -> bytes:
        length = len(payload)
        crc = crc32c(payload, crc32c(pack_covered(self._position, length, 0), self._seed))
        return pack_frame_header(FRAME_MAGIC, length, crc, 0) + payload

    def _append(self, payload: bytes, *, sync: bool) -> None:
        frame = self._frame(payload)
        os.pwrite(self._file, frame, self._position)
        self._position += len(frame)
        if sync:
            os.fdatasync(self._file)

    def _putter(self) -> Callable[[bytes, bytes], None]:
        encode, overlay, prefix, sync = put_encoder(ID_PREFIX), self._overlay, self._prefix, True

        def put(key: bytes, value: bytes) -> None:
            partition = murmur3(key, 0, False) % 1
            self._number = number = self._number + 1
            time = time_ns() // 1000
            self._append(
                encode(number, time, partition, EPOCH, number, NAMESPACE, key, value), sync=sync
            )
            overlay[prefix + key] = value + pack_trailer(0, EPOCH, number, time)

        return put

    def _mapped_putter(self) -> Callable[[bytes, bytes], None]:
        encode, overlay, prefix = put_encoder(ID_PREFIX), self._overlay, self._prefix
        log = mmap.mmap(self._file, FILLED_BYTES)

        def put(key: bytes, value: bytes) -> None:
            partition = murmur3(key, 0, False) % 1
            self._number = number = self._number + 1
            time = time_ns() // 1000
            frame = self._frame(
                encode(number, time, partition, EPOCH, number, NAMESPACE, key, value)
            )
            position = self._position
            self._position = end = position + len(frame)
            log[position:end] = frame
            overlay[prefix + key] = value + pack_trailer(0, EPOCH, number, time)

        return put

    def put_many(self, pairs: list[tuple[bytes, bytes, Any]]) -> None:
        """Put what several tasks brought, with one frame and one sync."""
        encode, overlay, prefix = put_encoder(ID_PREFIX), self._overlay, self._prefix
        time, first = time_ns() // 1000, self._number + 1
        self._number += len(pairs)
        self._append(
            b"".join(
                encode(number, time, 0, EPOCH, number, NAMESPACE, key, value)
                for number, (key, value, _) in enumerate(pairs, first)
            ),
            sync=True,
        )
        for number, (key, value, _) in enumerate(pairs, first):
            overlay[prefix + key] = value + pack_trailer(0, EPOCH, number, time)

    def transact(self, pairs: list[Pair]) -> None:
        """One record, one frame and one sync for a few pairs."""
        self._transact(dict(pairs), sync=self._durable)

    def _transact(self, writes: dict[bytes, bytes], *, sync: bool) -> None:
        keys, values = list(writes), list(writes.values())
        any(murmur3(key, 0, False) % 1 for key in keys)
        time, first = time_ns() // 1000, self._number + 1
        self._number += len(keys)
        body = self._pack(
            tx_body(
                ID_PREFIX + first.to_bytes(8, "big"),
                time,
                (0, EPOCH, first, len(keys)),
                NAMESPACE,
                keys,
                list(values),
                None,
            )
        )
        self._append(pack_record_header(len(body), 1, 0) + body, sync=sync)
        self._overlay.update(
            zip(
                map(add, repeat(self._prefix), keys),
                stored_run(values, EPOCH, first, time),
                strict=False,
            )
        )

    def load(self, batches: Iterable[list[Pair]]) -> None:
        for batch in batches:
            self._transact(dict(batch), sync=False)
            if len(self._overlay) >= FLUSH_UPDATES:
                self.settle()
        os.fdatasync(self._file)

    def settle(self) -> None:
        """Carry everything into LMDB."""
        keys = sorted(self._overlay)
        stored = checked(keys, map(self._overlay.__getitem__, keys))
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(keys, stored, strict=True))
        self._overlay.clear()
        self._reading = self._env.begin()

    def _getter(self) -> Callable[[bytes], bytes | None]:
        overlay, prefix = self._overlay, self._prefix

        def get(key: bytes) -> bytes | None:
            partition = murmur3(key, 0, False) % 1
            full_key = prefix + key
            found = overlay.get(full_key)
            if found is None:
                found = self._reading.get(full_key)
                if found is None or crc32c(found, crc32c(full_key)):
                    raise KeyError(key, partition)
            return found[:-TRAILER_SIZE]

        return get

    def get_many(self, keys: list[bytes]) -> dict[bytes, bytes]:
        full_keys = list(map(add, repeat(self._prefix), keys))
        found: list[bytes] = list(map(self._reading.get, full_keys, repeat(b"")))
        if crc32c(b"".join(chain.from_iterable(zip(full_keys, found, strict=True)))):
            raise KeyError(keys)
        return dict(zip(keys, [value[:-TRAILER_SIZE] for value in found], strict=True))

    def scan(self, prefix: bytes = b"") -> Iterator[Pair]:
        return chain.from_iterable(self._blocks(prefix))

    def _blocks(self, prefix: bytes) -> Iterator[list[Pair]]:
        first = self._prefix + prefix
        cursor = self._reading.cursor()
        cursor.set_range(first)
        items = cursor.iternext()
        while block := list(islice(items, BLOCK)):
            parts = list(chain.from_iterable(block))
            if crc32c(b"".join(parts)):
                raise ValueError(first)
            ends = not block[-1][0].startswith(first)
            if ends:
                block = [pair for pair in block if pair[0].startswith(first)]
            yield [(key[PREFIX_SIZE:], value[:-TRAILER_SIZE]) for key, value in block]
            if ends:
                return

    def close(self) -> None:
        os.close(self._file)
        self._env.close()


async def from_tasks(path: Path, pairs: list[Pair], tasks: int, seconds: float) -> float:
    """Durable puts per second of Trio tasks, committed in groups by a thread of their own."""
    import trio

    store = Sketch(path, "durable")
    queue: deque[tuple[bytes, bytes, Any]] = deque()
    wake: SimpleQueue[bool] = SimpleQueue()
    token = trio.lowlevel.current_trio_token()
    done = 0

    def reschedule(group: list[tuple[bytes, bytes, Any]]) -> None:
        for _, _, task in group:
            trio.lowlevel.reschedule(task)

    def commit() -> None:
        while wake.get():
            while queue:
                group = [queue.popleft() for _ in range(len(queue))]
                store.put_many(group)
                token.run_sync_soon(reschedule, group)

    async def work(share: list[Pair]) -> None:
        nonlocal done
        for key, value in cycle(share):
            queue.append((key, value, trio.lowlevel.current_task()))
            if len(queue) == 1:
                wake.put(True)
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
            done += 1
            if perf_counter() >= end:
                break

    thread = Thread(target=commit, daemon=True)
    thread.start()
    begin = perf_counter()
    end = begin + seconds
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(work, pairs[number::tasks])
    rate = done / (perf_counter() - begin)
    wake.put(False)
    thread.join()
    store.close()
    return rate
