"""etcd as a peer: processes on loopback, clients in threads, in tasks, and etcd's own in Go.

Those of Python are grpcio with messages packed by hand, and one connection to the member that
leads.  (etcd-client-py, a binding to a client in Rust, sends one request at a time, however many
tasks ask.)  The one in Go, in ``etcd_load``, is built when it is asked for.  A get is linearizable,
a put is answered when a majority has synced it: etcd's defaults.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "benchmarks" / "etcd_load"
PROGRAM = ROOT / "build" / "etcd_load"
BUILD_S_MAX = 300.0
SHARE = 16
"""Clients in Go that have a connection together: the quickest of 1, 8, 16 and 64 at 32 clients."""
PUT, GET, TXN = (f"/etcdserverpb.KV/{name}" for name in ("Put", "Range", "Txn"))
START_S_MAX = 60.0
SMALL = 128
"""Lengths below it are one byte on the wire."""
REVISIONS = re.compile(rb"\x10[\x80-\xff]*[\x00-\x7f]\x18([\x80-\xff]*[\x00-\x7f])", re.DOTALL)
"""What follows a key in an answer: the revisions at which it was made, and last set."""
COMPARED, REVISION, SUCCEEDED = b"\x10\x02", b"\x30", b"\x10\x01"
"""That the revision is compared, the tag of the one that is expected, and that all were equal."""


def missing() -> str | None:
    """Why etcd cannot take part here; None if it can."""
    if shutil.which("etcd") is None:
        return "etcd is not installed (on Debian: apt-get install etcd-server)"
    return None


def version() -> str:
    """What the program says that it is."""
    told = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.splitlines()[0].rpartition(" ")[2]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@functools.cache
def lacks_go() -> str | None:
    """Build the client in Go, once; returns why there is none, None if there is."""
    if shutil.which("go") is None:
        return "there is no Go here to build etcd's own client with"
    command = ["go", "build", "-o", str(PROGRAM), "."]
    built = subprocess.run(
        command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    if built.returncode:
        return f"etcd's own client could not be built ({built.stderr.strip().splitlines()[-1]})"
    return None


def go_load(
    endpoints: str,
    operation: str,
    clients: int,
    seconds: float,
    pids: tuple[int, ...],
    *,
    limit_s: float = 10.0,
    each: bool = False,
    draws: Path | None = None,
    keys: int = 1,
) -> dict[str, Any]:
    """What the client in Go tells of its load; of each operation if asked to.

    An operation that takes more than ``limit_s`` has failed.  ``draws`` has the keys of all
    transactions one behind the other, so many ``keys`` each.
    """
    options = {
        "endpoints": endpoints,
        "operation": operation,
        "clients": clients,
        "share": SHARE,
        "seconds": seconds,
        "pids": ",".join(map(str, pids)),
        "limit": f"{limit_s}s",
        "each": "true" if each else "false",
        "draws": draws or "",
        "keys": keys,
    }
    command = [str(PROGRAM), *(f"-{name}={value}" for name, value in options.items())]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    told: dict[str, Any] = json.loads(answer.stdout)
    return told


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster of etcd that runs: who leads, the addresses of all, and their processes."""

    leader: str
    addresses: tuple[str, ...]
    processes: tuple[subprocess.Popen[bytes], ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def leading_pid(self) -> int:
        return self.pids[self.addresses.index(self.leader)]


@contextmanager
def running(folder: Path, members: int) -> Iterator[Running]:
    """Processes of a new cluster until the block ends."""
    ports = free_ports(2 * members)
    clients, peers = ports[:members], ports[members:]
    cluster = ",".join(f"m{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for at, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            options = {
                "name": f"m{at}",
                "data-dir": str(folder / f"m{at}"),
                "listen-client-urls": f"http://127.0.0.1:{client}",
                "advertise-client-urls": f"http://127.0.0.1:{client}",
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-cluster": cluster,
                "logger": "zap",
                "log-level": "error",
            }
            command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
            processes.append(subprocess.Popen(command, stdout=sys.stderr))
        leader = f"127.0.0.1:{_leading(clients)}"
        addresses = tuple(f"127.0.0.1:{port}" for port in clients)
        yield Running(leader, addresses, tuple(processes))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _leading(ports: list[int]) -> int:
    deadline = monotonic() + START_S_MAX
    while monotonic() < deadline:
        for port in ports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v3/maintenance/status", data=b"{}"
            )
            try:
                with urllib.request.urlopen(request, timeout=1) as answer:
                    told = json.load(answer)
            except OSError:
                continue
            if told.get("leader") == told["header"]["member_id"]:
                return port
        sleep(0.05)
    raise TimeoutError("no member of etcd leads")


class Threads:
    """One connection that threads share."""

    def __init__(self, address: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(address)
        self._put = self._channel.unary_unary(PUT)
        self._get = self._channel.unary_unary(GET)
        self._txn = self._channel.unary_unary(TXN)

    def put(self, key: bytes, value: bytes) -> object:
        return self._put(_field(1, key) + _field(2, value))

    def get(self, key: bytes) -> object:
        return self._get(_field(1, key))

    def transact(self, keys: Sequence[bytes], value: bytes) -> int:
        """Read keys and set them all, until nobody came between; returns how often one did."""
        for again in count():
            if _succeeded(self._txn(_writing(keys, value, self._txn(_reading(keys))))):
                return again
        raise AssertionError("the count has ended")

    def close(self) -> None:
        self._channel.close()


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes in a protobuf message."""
    assert len(data) < SMALL
    return bytes((number << 3 | 2, len(data))) + data


def _reading(keys: Sequence[bytes]) -> bytes:
    """A transaction that has a range for each key."""
    return b"".join(_field(2, _field(1, _field(1, key))) for key in keys)


def _writing(keys: Sequence[bytes], value: bytes, read: bytes) -> bytes:
    """A transaction that sets all keys if they are as they were read.

    Revisions stay as they are on the wire: that is quickest.  A key is found where the answer of
    its range begins, since no other 16 bytes there are the same.
    """
    parts, at = [], 0
    for key in keys:
        at = read.index(key, at) + len(key)
        found = REVISIONS.match(read, at)
        assert found is not None
        parts.append(_field(1, COMPARED + _field(3, key) + REVISION + found[1]))
        parts.append(_field(2, _field(2, _field(1, key) + _field(2, value))))
    return b"".join(parts)


def _succeeded(answer: bytes) -> bool:
    """Whether the compares of a transaction held: what follows the header."""
    header = 2 + answer[1]
    return answer[header : header + 2] == SUCCEEDED


class Tasks:
    """One connection that tasks of asyncio share."""

    def __init__(self, address: str) -> None:
        import grpc

        self._channel = grpc.aio.insecure_channel(address)
        self._put = self._channel.unary_unary(PUT)
        self._get = self._channel.unary_unary(GET)
        self._txn = self._channel.unary_unary(TXN)

    async def put(self, key: bytes, value: bytes) -> object:
        return await self._put(_field(1, key) + _field(2, value))

    async def get(self, key: bytes) -> object:
        return await self._get(_field(1, key))

    async def transact(self, keys: Sequence[bytes], value: bytes) -> int:
        """Read keys and set them all, until nobody came between; returns how often one did."""
        for again in count():
            read = await self._txn(_reading(keys))
            if _succeeded(await self._txn(_writing(keys, value, read))):
                return again
        raise AssertionError("the count has ended")

    async def close(self) -> None:
        await self._channel.close()
