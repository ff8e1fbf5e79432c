"""Whoever speaks nonsense to a member, or nothing: bounded cost, a line in the log, and no more."""

from __future__ import annotations

import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import tidelog
from tidelog.engine.net.frames import frame, pack_message
from tidelog.engine.net.handshake import Introduction
from tidelog.engine.net.kinds import BY_NAME

pytestmark = pytest.mark.slow

SILENT = 1000
PATIENCE_S = 30.0
GROWTH_KIB_MAX = 40_000
"""What the memory of a member may grow by, whatever its peers do."""
FILES_MORE_MAX = 8
SEGMENT_MIB = 64


@dataclass
class Server:
    """A member of a cluster of one, as a process."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1])

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    @contextmanager
    def withstands(self, lines_max: int) -> Iterator[None]:
        """A user is served meanwhile and behind it; memory, files and lines stay in bounds."""
        with tidelog.connect(f"tidelog://127.0.0.1:{self.port}") as db:
            mapping = db.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.Msgpack)
            mapping["before"] = 1
            memory, files, lines = self.memory_kib(), self.files(), len(self.lines())
            yield
            assert mapping["before"] == 1
            mapping["behind"] = 2
            assert self.memory_kib() < memory + GROWTH_KIB_MAX
            assert self.files() < files + FILES_MORE_MAX
            new = self.lines()[lines:]
            assert len(new) <= lines_max, new
            assert not [line for line in new if "Traceback" in line]
        assert self.process.poll() is None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("member")) as server:
        yield server


@contextmanager
def running(folder: Path, limit: str = "") -> Iterator[Server]:
    """A member whose shell sets a limit before."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tool = [sys.executable, "-m", "tidelog", "server"]
    where, log = str(folder / "n1"), folder / "log"
    subprocess.run(
        [*tool, "init", where, "--members", f"n1=127.0.0.1:{port}", "--name", "n1",
         "--partitions", "4"],
        check=True, capture_output=True,
    )  # fmt: skip
    with log.open("w") as err:
        process = subprocess.Popen(
            ["bash", "-c", f'{limit} exec "$@"', "bash", *tool, "run", where],
            stdout=subprocess.PIPE, stderr=err, text=True,
        )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            assert str(port) in process.stdout.readline()
            yield Server(process, port, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def introduction(role: str = "client", line: int = 0) -> bytes:
    mine = Introduction(
        role="client", channel="client", member=b"a test line %04d" % line, number=1
    ).message()
    mine[mine.index("client")] = role
    return frame([pack_message(mine)])


def ends(peer: socket.socket) -> None:
    """Wait until the other end has closed the connection."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass


REQUEST = BY_NAME["request"].number
WAYS: dict[str, Callable[[], bytes]] = {
    "random bytes": lambda: random.Random(1).randbytes(100_000),
    "a frame that is too long": lambda: b"\xff\xff\xff\x7f" + b"x" * 10_000,
    "too long for a stranger": lambda: frame([b"\xc4" + b"x" * 5000]),
    "nothing of ours": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "another role": lambda: introduction("king"),
    "a member of nowhere": lambda: introduction("member"),
    "too deep": lambda: introduction() + frame([b"\x91" * 50_000 + b"\xc0"]),
    "no message": lambda: introduction() + frame([b"\xc1"]),
    "no kind": lambda: introduction() + frame([pack_message([250, 1])]),
    "fields that are none": lambda: introduction() + frame([pack_message([REQUEST, "x"])]),
    "a frame cut short, and another": lambda: introduction() + frame([b"\x90"])[:-1] + b"zzzz" * 99,
}


@pytest.mark.parametrize("way", WAYS)
def test_nonsense_ends_its_connection_with_a_line_in_the_log(server: Server, way: str) -> None:
    with server.withstands(lines_max=1), server.connected() as peer:
        peer.sendall(WAYS[way]())
        ends(peer)


def test_a_thousand_times_the_same_nonsense_is_a_few_lines(server: Server) -> None:
    with server.withstands(lines_max=30):
        for _ in range(SILENT):
            with server.connected() as peer:
                peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
                ends(peer)


def test_a_thousand_connections_that_say_nothing_end_and_cost_little(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    peers: list[socket.socket] = []
    try:
        with server.withstands(lines_max=30):
            for number in range(SILENT):
                peers.append(server.connected())
                if number % 3 == 0:
                    peers[-1].sendall(introduction()[:3])
            for peer in peers:
                ends(peer)
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_peer_that_reads_nothing_costs_bounded_memory(server: Server) -> None:
    request = pack_message(BY_NAME["request"].message(1, None, "status", []))
    with server.withstands(lines_max=2), server.connected() as peer:
        peer.sendall(introduction())
        peer.setblocking(False)
        requests = frame([request] * 100)
        sent = 0
        try:
            while sent < 200 << 20:
                sent += peer.send(requests)
        except (BlockingIOError, ConnectionError):
            pass
        assert sent < 200 << 20, "it should not take what it cannot answer"


def test_half_a_request_and_no_more_is_forgotten(server: Server) -> None:
    request = frame([pack_message(BY_NAME["request"].message(1, None, "status", []))])
    with server.withstands(lines_max=2):
        for _ in range(50):
            with server.connected() as peer:
                peer.sendall(introduction() + request[: len(request) // 2])


def test_clients_that_idle_do_not_keep_a_member_from_writing(tmp_path: Path) -> None:
    """They took all descriptors: the next segment of the log could not be made, nor written to."""
    with running(tmp_path, "ulimit -n 160;") as server, ExitStack() as idlers:
        url = f"tidelog://127.0.0.1:{server.port}"
        with tidelog.connect(url) as db:
            mapping = db.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.Bytes)
            mapping["before"] = b"1"
            for number in range(200):
                idler = idlers.enter_context(server.connected())
                idler.sendall(introduction(line=number))
                assert idler.recv(1), "it answers"
            for number in range(SEGMENT_MIB + 1):
                mapping[f"key-{number % 8}"] = bytes(1 << 20)
            with (
                pytest.raises(tidelog.errors.ClusterError, match="end some that are idle"),
                tidelog.connect(url, timeout=1.0) as late,
            ):
                late.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.Bytes)
