"""Programs that a user would write: run as a user runs them, ended by a signal, then checked."""

from __future__ import annotations

import asyncio
import random
import signal
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import httpx
import pytest

import tidelog
from support.real_stores import expect_sound
from support.servers import EXAMPLES, running
from tidelog import aio
from tidelog.errors import CodecError

PROGRAMS = EXAMPLES.parent
CLIENTS = 6
DELIVERED = {"apples": 25, "bread": 40, "cheese": 60}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROGRAMS)


# ------------------------------------------------------------------ a shop under uvicorn

ANSWERS = SimpleQueue[tuple[int, int]]
"""Numbers of clients with those of the orders that they were told of; 0: the client has ended."""


def go_shopping(number: int, address: str, answers: ANSWERS) -> None:
    """Fill carts and buy them until the server has gone."""
    chance = random.Random(number)
    try:
        with httpx.Client(base_url=address) as client:
            token = client.post("/sessions", params={"user": f"user-{number}"}).json()
            while True:
                for name in chance.sample(sorted(DELIVERED), 2):
                    assert client.post(f"/carts/{token}/{name}").status_code == 200
                bought = client.post(f"/carts/{token}")
                if bought.status_code == 201:
                    answers.put((number, bought.json()))
                else:
                    assert (bought.status_code, "sold out" in bought.text) == (409, True)
                    token = client.post("/sessions", params={"user": f"user-{number}"}).json()
                left = [product["left"] for product in client.get("/products").json().values()]
                assert min(left) >= 0
    except httpx.TransportError:
        pass
    finally:
        answers.put((number, 0))


def test_a_shop_sells_what_there_is_to_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "shop.tl"
    answers: ANSWERS = SimpleQueue()
    told: dict[int, int] = {}
    command = [
        "-m",
        "uvicorn",
        "--app-dir",
        PROGRAMS,
        "--port",
        0,
        "--log-level",
        "info",
        "shop:app",
    ]
    with running(*command, folder=tmp_path, SHOP_STORE=path) as program:
        address = program.address()
        for name, count in DELIVERED.items():
            there_is = f"count={count}&price=1.50"
            answer = httpx.put(f"{address}/products/{name}", params=there_is)
            assert answer.json() == {"price": "1.50", "left": count}
        clients = [
            Thread(target=go_shopping, args=(number, address, answers)) for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        ended = 0
        while ended < CLIENTS:
            client_number, order = answers.get()
            ended += order == 0
            if order:
                assert order not in told
                told[order] = client_number
                if len(told) == 30:
                    program.send(signal.SIGTERM)
        for client in clients:
            client.join()
        assert program.wait() in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in program.printed
    expect_sound(path)
    asyncio.run(look_into(path, told))


async def look_into(path: Path, told: dict[int, int]) -> None:
    from shop import LIFE, Shop

    async with aio.open(path) as db:
        shop = Shop(db)
        orders = {number: order async for number, order in shop.orders.items()}
        assert list(orders) == list(range(1, len(orders) + 1))
        for number, client in told.items():
            assert orders[number].user == f"user-{client}"
        for name, count in DELIVERED.items():
            product = await shop.products.get(name)
            assert product is not None
            sold = sum(order.items.get(name, 0) for order in orders.values())
            assert 0 <= product.left == count - sold
        for order in orders.values():
            assert order.total == Decimal("1.50") * sum(order.items.values())

        sessions = {token: session async for token, session in shop.sessions.items()}
        assert {key async for key in shop.ends} == {
            (s.ends, token) for token, s in sessions.items()
        }
        assert {token async for token in shop.carts} == sessions.keys()
        assert await db.run(shop.end, datetime.now(UTC)) == 0
        assert await db.run(shop.end, datetime.now(UTC) + LIFE) == len(sessions) >= CLIENTS
        assert [await part.count() for part in (shop.sessions, shop.ends, shop.carts)] == [0, 0, 0]


def test_a_session_of_a_shop_ends(tmp_path: Path) -> None:
    path = tmp_path / "shop.tl"
    command = ["-m", "uvicorn", "--app-dir", PROGRAMS, "--port", 0, "shop:app"]
    with running(*command, folder=tmp_path, SHOP_STORE=path, SHOP_SESSION=0) as program:
        with httpx.Client(base_url=program.address()) as client:
            token = client.post("/sessions", params={"user": "ada"}).json()
            assert client.post(f"/carts/{token}/apples").status_code == 401
        assert program.terminate() in (0, -signal.SIGTERM)


# ------------------------------------------------------------------ a ledger


def test_the_books_of_a_ledger_balance_after_a_kill(tmp_path: Path) -> None:
    from ledger import Ledger, Posting, report

    path = tmp_path / "ledger.tl"
    with running(PROGRAMS / "ledger.py", path, 100_000, folder=tmp_path) as program:
        program.wait_for("^done 200 ")
        program.send(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
    begun = [line.split()[2:] for line in program.lines if line.startswith("begin ")]
    done = [line.split()[2] for line in program.lines if line.startswith("done ")]
    with tidelog.open(path) as db:
        outcomes = [db.outcome(bytes.fromhex(tx_id)) for tx_id, *_ in begun]
        assert outcomes[: len(done)] == ["committed"] * len(done)
        assert outcomes[len(done) :] in (["committed"], ["rolled_back"], [])
        ledger = Ledger(db)
        expected: dict[str, Decimal] = {}
        for (_, payer, payee, amount), outcome in zip(begun, outcomes, strict=True):
            if outcome == "committed":
                expected[payer] = expected.get(payer, Decimal(0)) - Decimal(amount)
                expected[payee] = expected.get(payee, Decimal(0)) + Decimal(amount)
        assert ledger.balances == expected
        indexed = {(p.account, p.day, n): p.amount for n, p in ledger.postings.items()}
        assert ledger.by_day == indexed
        assert len(list(report(db))) == len(expected)
        first = ledger.postings.first()
        assert first is not None
        with db.snapshot() as moment:
            assert list(ledger.of(moment, first[1].account, first[1].day, first[1].day)) == []
    with tidelog.open(path) as db, pytest.raises(CodecError, match="which was not given"):
        db.map("postings")
    with tidelog.open(path, codecs=[tidelog.codecs.dataclass(Posting)]) as db:
        assert len(db.map("postings")) == len(db.map("by_day"))
    with running(PROGRAMS / "ledger.py", path, "report", folder=tmp_path) as program:
        assert program.wait() == 0
        assert program.printed.count("newest on") == len(expected)
    expect_sound(path)
