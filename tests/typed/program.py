"""What a user writes, as mypy and pyright have to see it.

A line with an error tells in its comment which checker has to find it, and under which code.  On
every other line neither may find anything.  What ``run`` reaches is carried out, too: what the
types allow there, the store does.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import trio

import tidelog
from tidelog import Database, Map, ReadOnlyDatabase, Snapshot, Transaction, aio, testing
from tidelog.codecs import I64, Bytes, Codec, Float, Json, Msgpack, Str, Tuple, as_codec


@dataclass(frozen=True)
class Money:
    cents: int


class Cents:
    """A codec of one's own that is a class: nothing of Tidelog is inherited."""

    name = "acme.money"
    version = 1

    def encode(self, money: Money) -> bytes:
        return I64.encode(money.cents)

    def decode(self, data: bytes) -> Money:
        return Money(I64.decode(data))


def encode_text(money: Money) -> bytes:
    return str(money.cents).encode()


def decode_text(data: bytes) -> Money:
    return Money(int(data))


class Till:
    def __init__(self, accounts: Map[str, int]) -> None:
        self.accounts = accounts

    def take(self, tx: Transaction, name: str) -> int:
        return tx[self.accounts].incr(name, -1)


def pay(tx: Transaction, payer: str, amount: int = 1) -> float:
    return amount / 2


def note(tx: Transaction) -> None:
    assert tx.tx_id is None


def count(tx: Transaction, *names: str) -> int:
    return len(names)


def named(tx: Transaction, *, name: str = "") -> str:
    return name


def needing(tx: Transaction, *, name: str) -> str:
    return name


def without(name: str) -> str:
    return name


async def slow_pay(tx: aio.Transaction, payer: str, amount: int = 1) -> float:
    return amount / 2


def hasty_pay(tx: aio.Transaction, payer: str) -> float:
    return 0.5


# ------------------------------------------------------------------ opening


def opening(path: Path, flag: bool) -> None:
    with tidelog.open(path, partitions=4, sync_interval=1, retain_seconds=None) as db:
        assert_type(db, Database)
        db.map("users", key=Str, value=I64)
    with tidelog.open(str(path), read_only=False, durability="none", codecs=[Cents(), Str]) as db:
        assert_type(db, Database)
    with tidelog.open(path, read_only=True, create=False, map_size=1 << 30) as reader:
        assert_type(reader, ReadOnlyDatabase)
    with tidelog.open(path, read_only=flag, checkpoint_bytes=1 << 20) as either:
        assert_type(either, Database | ReadOnlyDatabase)
        assert_type(either.map("users", key=Str, value=I64), Map[str, int])
        assert_type(either.snapshot(), Snapshot)
        assert_type(either.path, str)
        assert_type(either.partitions, int)
        either.statistics()
    with tidelog.memory(partitions=2, codecs=[Cents()], sync_interval=1) as db:
        assert_type(db, Database)


def wrong_opening(path: Path, flag: bool) -> None:
    tidelog.open(path, checkpoint_byte=5)  # mypy[call-overload] pyright[reportCallIssue]
    tidelog.open(path, read_only=True, mapsize=5)  # mypy[call-overload] pyright[reportCallIssue]
    tidelog.open(path, read_only=flag, mapsize=5)  # mypy[call-overload] pyright[reportCallIssue]
    tidelog.open(path, map_size=0.5)  # mypy[call-overload] pyright[reportArgumentType]
    tidelog.open(path, durability="now")  # mypy[call-overload] pyright[reportArgumentType]
    tidelog.open(path, codecs=Str)  # mypy[call-overload] pyright[reportArgumentType]
    tidelog.memory(checkpoint_byte=5)  # mypy[call-arg] pyright[reportCallIssue]
    tidelog.opn  # mypy[attr-defined] pyright[reportAttributeAccessIssue, reportUnknownMemberType]
    testing.Wrld  # mypy[attr-defined] pyright[reportAttributeAccessIssue, reportUnknownMemberType]


# ------------------------------------------------------------------ maps


def maps(db: Database) -> None:
    assert_type(db.map("any", key=Str, value=Msgpack), Map[str, Any])
    assert_type(db.map("numbers", key=I64, value=Float), Map[int, float])
    assert_type(db.map("tuples", key=Tuple, value=Json), Map[tuple[Any, ...], Any])
    assert_type(db.map("any", key=Str), Map[str, Any])
    assert_type(db.map("numbers", value=Float), Map[Any, float])
    assert_type(db.map("any"), Map[Any, Any])
    assert_type(db.map("any", create=False), Map[Any, Any])
    places: Map[tuple[str, int], list[str]] = db.map("tuples", key=Tuple, value=Json)
    places["GB", 5] = ["Leeds"]
    assert_type(list(places.keys(("GB",))), list[tuple[str, int]])
    assert_type(list(places.items(("GB",))), list[tuple[tuple[str, int], list[str]]])
    assert_type(list(places.range(("GB",), ("GC",))), list[tuple[tuple[str, int], list[str]]])
    assert_type(places.delete_range(("GA",), ("GB", 0)), int)
    recorded = db.map("any")
    assert_type(list(recorded.range()), list[tuple[Any, Any]])
    assert_type(list(recorded.range("a", limit=1)), list[tuple[Any, Any]])
    assert_type(list(recorded.items()), list[tuple[Any, Any]])
    assert_type(list(recorded.items("a")), list[tuple[Any, Any]])
    assert_type(list(recorded.keys()), list[Any])
    value = None if db.read_only else I64
    assert_type(db.map("maybe", key=Str, value=value), Map[str, int] | Map[str, Any])


def maps_that_are_read(reader: ReadOnlyDatabase) -> None:
    assert_type(reader.map("any", key=Str, value=Msgpack), Map[str, Any])
    assert_type(reader.map("any", key=Str), Map[str, Any])
    assert_type(reader.map("numbers", value=Float), Map[Any, float])
    assert_type(reader.map("any"), Map[Any, Any])


def wrong_maps(db: Database, places: Map[tuple[str, int], str]) -> None:
    users = db.map("users", key=Str, value=Msgpack)
    users[5] = 1  # mypy[index] pyright[reportArgumentType]
    users[b"ada"]  # mypy[index] pyright[reportArgumentType]
    users.delet  # mypy[attr-defined] pyright[reportAttributeAccessIssue, reportUnknownMemberType]
    places[5, "GB"] = ""  # mypy[index] pyright[reportArgumentType]
    places.keys("GB")  # mypy[call-overload] pyright[reportCallIssue, reportArgumentType]
    db.map("users", key=str)  # mypy[call-overload] pyright[reportCallIssue, reportArgumentType]
    db.map("users", Str, I64)  # mypy[call-overload] pyright[reportCallIssue]
    db.map(5)  # mypy[call-overload] pyright[reportArgumentType]


def codecs(db: Database) -> None:
    text = Codec(name="acme.text", encode=encode_text, decode=decode_text)
    assert_type(text, Codec[Money])
    assert_type(as_codec(Cents()), Codec[Money])
    assert_type(as_codec(text), Codec[Money])
    prices = db.map("prices", key=Str, value=Cents())
    assert_type(prices, Map[str, Money])
    prices["tea"] = Money(120)
    assert_type(prices["tea"], Money)
    assert_type(db.map("tags", key=text, value=Bytes), Map[Money, bytes])


def wrong_codecs(prices: Map[str, Money]) -> None:
    prices["tea"] = 120  # mypy[assignment] pyright[reportArgumentType]
    Str.encode(5)  # mypy[arg-type] pyright[reportArgumentType]
    as_codec(Money(5))  # mypy[arg-type] pyright[reportArgumentType]


# ------------------------------------------------------------------ what maps do


def reading(users: Map[str, int]) -> None:
    users |= {"ada": 1, "bob": 2}
    assert_type(users["ada"], int)
    assert_type(users.get("ada"), int | None)
    assert_type(users.get("ada", 0), int)
    assert_type(users.get("ada", "none"), int | str)
    assert_type(users.get("ada", None), int | None)
    assert_type(users.get_many(["ada"]), dict[str, int])
    assert_type(users.first(), tuple[str, int] | None)
    assert_type(users.last(), tuple[str, int] | None)
    assert_type("ada" in users, bool)
    assert_type(len(users), int)
    assert_type(list(users), list[str])
    assert_type(list(reversed(users)), list[str])
    assert_type(list(users.keys("a")), list[str])
    assert_type(list(users.values()), list[int])
    assert_type(list(users.range("a", None, reverse=True, limit=1)), list[tuple[str, int]])
    assert_type(dict(users), dict[str, int])
    with users.items(prefix="a") as pairs:
        for name, number in pairs:
            assert_type(name, str)
            assert_type(number, int)
    mapping: Mapping[str, float] = users
    changed: MutableMapping[str, int] = users
    assert mapping == changed


def writing(users: Map[str, int], numbers: Map[int, float]) -> None:
    users["ada"] = 1
    users.set("bob", 2)
    users.update({"ada": 1})
    users.update({"ada": 1}, bob=2, self=3)
    users.update([("ada", 1)], bob=2)
    users.update((name, 1) for name in ("ada", "bob"))
    users.update(users, bob=2)
    users.update(bob=2)
    numbers.update({1: 2.5})
    numbers.update(enumerate([0.5]))
    users.update_many({"ada": 1})
    users.update_many([("ada", 1)])
    users |= [("ada", 1)]
    assert_type(users.load(users.items(), batch=10), int)
    assert_type(users.incr("ada"), int)
    assert_type(users.compare_and_set("ada", None, 5), bool)
    assert_type(users.setdefault("ada", 1), int)
    assert_type(users.pop("ada"), int)
    assert_type(users.pop("ada", 0), int)
    assert_type(users.pop("ada", None), int | None)
    assert_type(users.pop("ada", "none"), int | str)
    assert_type(users.popitem(), tuple[str, int])
    assert_type(users.delete_range("a", "b"), int)
    users.delete_many({"ada"})
    users.discard("bob")
    users.clear()


def nothing(maybe: Map[str, int | None]) -> None:
    assert_type(maybe.setdefault("ada"), int | None)
    assert_type(maybe.setdefault("ada", 1), int | None)


def wrong_use(users: Map[str, int], numbers: Map[int, float]) -> None:
    users["ada"] = "1"  # mypy[assignment] pyright[reportArgumentType]
    users.get(5)  # mypy[call-overload] pyright[reportArgumentType]
    users.pop(5)  # mypy[call-overload] pyright[reportArgumentType]
    users.setdefault("ada")  # mypy[call-arg] pyright[reportCallIssue]
    users.setdefault("ada", "1")  # mypy[arg-type] pyright[reportArgumentType]
    users.update_many({5: 1})  # mypy[arg-type] pyright[reportArgumentType]
    users.delete_many([5])  # mypy[list-item] pyright[reportArgumentType]
    users.range(5)  # mypy[arg-type] pyright[reportArgumentType]
    users.items(("a",))  # mypy[call-overload] pyright[reportCallIssue, reportArgumentType]
    users.update(bob="2")  # mypy[call-overload] pyright[reportArgumentType]
    numbers.update(bob=2)  # mypy[call-overload] pyright[reportCallIssue]
    number: str = users["ada"]  # mypy[assignment] pyright[reportAssignmentType]
    assert number


# ------------------------------------------------------------------ transactions and snapshots


def transactions(db: Database, users: Map[str, int]) -> None:
    with db.transaction("pessimistic", isolation="repeatable_read", tag="x") as tx:
        assert_type(tx, Transaction)
        assert_type(tx[users], Map[str, int])
        tx[users]["ada"] = 1
        receipt = tx.commit()
        assert_type(receipt.tx_id, bytes)
        assert_type(receipt.position, int)
    try:
        db.map("users", key=I64)
    except tidelog.TidelogError as error:
        assert_type(error.hint, str)
        assert_type(error.retryable, bool)
    for attempt in db.attempts(3, isolation="read_committed", lock_timeout=1):
        with attempt as tx:
            assert_type(tx[users].get("ada"), int | None)
    with db.snapshot() as old:
        assert_type(old, Snapshot)
        assert_type(old.position, int)
        assert_type(old[users], Map[str, int])
        assert_type(old[users]["ada"], int)
    assert_type(db.run(pay, "ada", 3), float)
    assert_type(db.run(pay, "ada"), float)
    pair = ("ada", 3)
    assert_type(db.run(pay, *pair), float)
    assert_type(db.run(note), None)
    assert_type(db.run(count, "ada", "bob"), int)
    assert_type(db.run(count), int)
    assert_type(db.run(named), str)
    assert_type(db.run(Till(users).take, "ada"), int)
    assert_type(db.run(partial(pay, amount=3), "ada"), float)
    assert_type(db.run(partial(needing, name="ada")), str)
    assert_type(db.run(lambda tx: tx[users]["ada"]), int)
    assert_type(db.run(lambda tx, name: tx[users][name], "ada"), int)
    assert_type(db.run(pay, "ada", attempts=3, deadline=60, mode="pessimistic", tag="x"), float)


def wrong_transactions(db: Database, users: Map[str, int]) -> None:
    db.run(pay)  # mypy[arg-type] pyright[reportArgumentType]
    db.run(pay, 5)  # mypy[arg-type] pyright[reportArgumentType]
    db.run(pay, "ada", "bob")  # mypy[arg-type] pyright[reportArgumentType]
    db.run(pay, "ada", 3, 4)  # mypy[arg-type] pyright[reportArgumentType]
    db.run(pay, "ada", amount=3)  # mypy[call-arg] pyright[reportCallIssue]
    db.run(pay, "ada", mode="hasty")  # mypy[arg-type] pyright[reportArgumentType]
    db.run(pay, "ada", mod="optimistic")  # mypy[call-arg] pyright[reportCallIssue]
    db.run(count, 5)  # mypy[arg-type] pyright[reportArgumentType]
    db.run(needing)  # mypy[arg-type] pyright[reportArgumentType]
    db.run(without)  # mypy[arg-type] pyright[reportArgumentType]
    db.attempts(isolatio="serializable")  # mypy[call-arg] pyright[reportCallIssue]
    db.attempts(tag=5)  # mypy[arg-type] pyright[reportArgumentType]
    with db.transaction() as tx:
        tx[users]["ada"] = "1"  # mypy[assignment] pyright[reportArgumentType]
        tx["users"]  # mypy[index] pyright[reportArgumentType]
    with db.snapshot() as old:
        old[users][5]  # mypy[index] pyright[reportArgumentType]


# ------------------------------------------------------------------ under Trio


async def under_trio(path: Path, flag: bool) -> None:
    async with aio.open(path, read_only=flag, reads="thread", map_size=1 << 30) as db:
        assert_type(db, aio.Database)
        assert_type(db.map("any", key=Str, value=Msgpack), aio.Map[str, Any])
        assert_type(db.map("any", key=Str), aio.Map[str, Any])
        assert_type(db.map("numbers", value=Float), aio.Map[Any, float])
        assert_type(db.map("any"), aio.Map[Any, Any])
        users = db.map("users", key=Str, value=I64)
        assert_type(users, aio.Map[str, int])
        await users.update_many({"ada": 1, "bob": 2, "cid": 3})
        await users.set("ada", 1)
        assert_type(await users.get("ada"), int | None)
        assert_type(await users.get("ada", 0), int)
        assert_type(await users.get("ada", "none"), int | str)
        assert_type(await users.contains("ada"), bool)
        assert_type(await users.get_many(["ada"]), dict[str, int])
        assert_type(await users.first(), tuple[str, int] | None)
        assert_type(await users.setdefault("ada", 1), int)
        assert_type(await users.pop("ada"), int)
        assert_type(await users.pop("ada", None), int | None)
        assert_type(await users.popitem(), tuple[str, int])
        places: aio.Map[tuple[str, int], list[str]] = db.map("tuples", key=Tuple, value=Json)
        assert_type([key async for key in places.keys(("GB",))], list[tuple[str, int]])
        assert_type(await places.delete_range(("GA",), ("GB", 0)), int)
        assert_type([name async for name in users], list[str])
        assert_type([number async for number in users.values()], list[int])
        async with users.range("a", limit=1) as pairs:
            async for pair in pairs:
                assert_type(pair, tuple[str, int])
        async with db.transaction(tag="x") as tx:
            assert_type(tx, aio.Transaction)
            assert_type(tx[users], aio.Map[str, int])
            await tx[users].set("ada", 1)
        async for attempt in db.attempts(3, mode="pessimistic"):
            async with attempt as tx:
                assert_type(await tx[users].get("ada"), int | None)
        async with db.snapshot() as old:
            assert_type(old[users], aio.Map[str, int])
        assert_type(await db.run(slow_pay, "ada", 3), float)
        assert_type(await db.run(slow_pay, "ada", deadline=60, tag="x"), float)


async def wrong_under_trio(db: aio.Database, users: aio.Map[str, int], path: Path) -> None:
    aio.open(path, checkpoint_byte=5)  # mypy[call-arg] pyright[reportCallIssue]
    aio.open(path, reads="now")  # mypy[arg-type] pyright[reportArgumentType]
    db.map("users", key=str)  # mypy[call-overload] pyright[reportCallIssue, reportArgumentType]
    await users.set(5, 1)  # mypy[arg-type] pyright[reportArgumentType]
    await users.set("ada", "1")  # mypy[arg-type] pyright[reportArgumentType]
    await users.update_many({5: 1})  # mypy[arg-type] pyright[reportArgumentType]
    await db.run(slow_pay)  # mypy[arg-type] pyright[reportArgumentType]
    await db.run(slow_pay, 5)  # mypy[arg-type] pyright[reportArgumentType]
    await db.run(slow_pay, "ada", tg="x")  # mypy[call-arg] pyright[reportCallIssue]
    await db.run(hasty_pay, "ada")  # mypy[arg-type] pyright[reportArgumentType]
    db.attempts(isolatio="serializable")  # mypy[call-arg] pyright[reportCallIssue]


# ------------------------------------------------------------------ all that is right


def run(path: Path) -> None:
    """Carry out all that the checkers have nothing against, on a store in a directory."""
    for flag in (False, True):
        opening(path, flag)
    with tidelog.open(path) as db:
        maps(db)
        codecs(db)
        users = db.map("users", key=Str, value=I64)
        reading(users)
        writing(users, db.map("numbers", key=I64, value=Float))
        nothing(db.map("nothing", key=Str, value=Json))
        users.update_many({"ada": 1, "bob": 2})
        transactions(db, users)
    with tidelog.open(path, read_only=True) as reader:
        maps_that_are_read(reader)
    trio.run(under_trio, path, False)
