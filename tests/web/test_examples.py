"""The examples for servers and workers: run as a user runs them, ended by SIGTERM, then checked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidelog
from support.real_stores import expect_sound
from support.servers import EXAMPLES, Program, running
from tidelog.engine.api.database import session_of
from tidelog.testing import check_store

pytestmark = pytest.mark.slow

SHOP = ["--pythonpath", EXAMPLES, "--config", EXAMPLES / "gunicorn_hooks.py"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.tl"


@contextmanager
def uvicorn(path: Path, *arguments: object) -> Iterator[Program]:
    command = ["-m", "uvicorn", "--app-dir", EXAMPLES, "--port", 0, *arguments]
    with running(*command, "fastapi_shop:app", folder=path.parent, SHOP_STORE=path) as program:
        yield program


@contextmanager
def gunicorn(path: Path, *arguments: object, **variables: object) -> Iterator[Program]:
    command = ["-m", "gunicorn", "--bind", "127.0.0.1:0", "--no-control-socket", *arguments]
    with running(*command, folder=path.parent, SHOP_STORE=path, **variables) as program:
        yield program


def left_by(path: Path) -> dict[str, dict[Any, Any]]:
    """What the maps of a store hold, which was closed cleanly and has no damage."""
    assert check_store(path) == []
    with tidelog.open(path) as db:
        assert session_of(db).store.report.clean
        return {name: dict(db.map(name)) for name in db.maps()}


# ------------------------------------------------------------------ FastAPI under uvicorn


def test_fastapi_sells_what_there_is_and_no_more(path: Path) -> None:
    with uvicorn(path) as program, httpx.Client(base_url=program.address()) as client:
        assert client.get("/stock/apples").status_code == 404
        assert client.put("/stock/apples", params={"count": 20}).json() == 20

        def order(_: int) -> httpx.Response:
            return client.post("/orders", params={"item": "apples"})

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(order, range(30)))
        assert [answer.status_code for answer in answers].count(409) == 10
        taken = sorted(answer.json() for answer in answers if answer.status_code == 201)
        assert taken == list(range(1, 21))
        assert client.get("/stock").json() == {"apples": 0}
        assert program.terminate() in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in program.printed
    orders = {number: {"item": "apples"} for number in range(1, 21)}
    assert left_by(path) == {"stock": {"apples": 0}, "orders": orders}


def test_a_second_worker_of_uvicorn_ends_the_server(path: Path) -> None:
    with uvicorn(path, "--workers", 2) as program:
        program.wait_for("AlreadyOpenError: .* is open for writing in process")
        program.wait()
    expect_sound(path)


# ------------------------------------------------------------------ gunicorn


def test_gunicorn_writes_in_one_worker_and_reads_in_others(path: Path) -> None:
    writing = ["--workers", 1, "--threads", 4, "gunicorn_shop:writer"]
    with gunicorn(path, *SHOP, "--preload", *writing) as writer, httpx.Client() as client:
        place = writer.address()
        assert client.post(f"{place}/apples").text == "1"
        reading = ["--workers", 2, "gunicorn_shop:reader"]
        with gunicorn(path, *SHOP, "--preload", *reading) as reader:
            at = reader.address()
            assert client.post(f"{at}/apples").status_code == 405
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda _: client.post(f"{place}/apples"), range(9)))
            # A reader shows what is known to be durable, a moment later.
            while client.get(f"{at}/apples").text != "10":
                pass
            assert reader.terminate() == 0
        assert writer.terminate() == 0
    assert left_by(path) == {"stock": {"apples": 10}}


def test_a_second_worker_of_gunicorn_that_writes_ends_the_server(path: Path) -> None:
    shop = [*SHOP, "--workers", 2, "gunicorn_shop:writer"]
    with gunicorn(path, *shop, SHOP_PATIENCE=0) as program:
        program.wait_for("AlreadyOpenError: .* is open for writing in process")
        assert program.wait() == 3
        assert "Worker failed to boot" in program.printed
    expect_sound(path)


def test_a_worker_of_gunicorn_hands_over_to_the_next_one(path: Path) -> None:
    """By SIGHUP the new one begins while the old one has the store still."""
    shop = [*SHOP, "--workers", 1, "--threads", 2, "gunicorn_shop:writer"]
    with gunicorn(path, *shop) as program, httpx.Client(base_url=program.address()) as client:
        old = int(program.wait_for(r"Booting worker with pid: (\d+)")[1])
        assert client.post("/apples").text == "1"
        client.close()
        program.send(signal.SIGHUP)
        program.wait_for(rf"Worker exiting \(pid: {old}\)")
        assert httpx.post(f"{program.address()}/apples").text == "2"
        new = int(program.wait_for(rf"Booting worker with pid: (?!{old}\b)(\d+)")[1])
        os.kill(new, signal.SIGKILL)
        program.wait_for(rf"Worker \(pid:{new}\) was sent SIGKILL")
        assert httpx.post(f"{program.address()}/apples").text == "3"
        assert program.terminate() == 0
    assert left_by(path) == {"stock": {"apples": 3}}


OPENED_AT_IMPORT = """
import os, tidelog
db = tidelog.open(os.environ["SHOP_STORE"])
stock = db.map("stock")

def application(environ, start):
    stock[b"apples"] = b"1"
"""


def test_what_was_opened_before_the_fork_is_refused_in_the_workers(path: Path) -> None:
    (path.parent / "trap.py").write_text(OPENED_AT_IMPORT)
    with gunicorn(path, "--preload", "--workers", 2, "trap:application") as program:
        assert httpx.get(program.address()).status_code == 500
        program.wait_for("ForkedError: the store .* was opened before this process was forked")
        assert program.terminate() == 0
    assert left_by(path) == {"stock": {}}


# ------------------------------------------------------------------ Celery


def test_celery_writes_in_one_process_and_reads_in_others(path: Path) -> None:
    tidelog.open(path).close()
    broker = path.parent / "broker"

    def worker(role: str, queue: str, processes: int) -> Any:
        return running(
            *("-m", "celery", "--app", "celery_shop", "--workdir", EXAMPLES, "worker"),
            *("--queues", queue, "--concurrency", processes, "--hostname", f"{role}@%h"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            folder=path.parent,
            SHOP_STORE=path,
            SHOP_BROKER=broker,
            SHOP_ROLE=role,
        )

    with (
        worker("writer", "writes", 1) as writer,
        worker("reader", "reads", 2) as reader,
        running(
            EXAMPLES / "celery_shop.py", "apples", folder=path.parent, SHOP_BROKER=broker
        ) as client,
    ):
        assert client.wait() == 0
        assert "sold: 5\nseen: 5\n" in client.printed
        for program in (writer, reader):  # each takes some seconds to end
            program.send(signal.SIGTERM)
        assert [writer.wait(), reader.wait()] == [0, 0]
    assert left_by(path) == {"sold": {"apples": 5}}


# ------------------------------------------------------------------ pools, pytest


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork"])
def test_a_pool_reads_while_its_parent_writes(path: Path, start: str) -> None:
    with running(EXAMPLES / "process_pool.py", start, path, folder=path.parent) as program:
        assert program.wait() == 0
        assert "{'a': 7, 'b': 0, 'p': 5}" in program.printed
    assert left_by(path)["sums"] == {"a": 7, "b": 0, "p": 5}


def test_the_fixtures_for_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    arguments = ["-W", "error", "-q", "-p", "no:cacheprovider", "-c", tmp_path / "pytest.ini"]
    shop = EXAMPLES / "test_shop.py"
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1}
    with running("-m", "pytest", *arguments, shop, folder=tmp_path, **alone) as program:
        assert program.wait() == 0
        assert "3 passed" in program.printed
