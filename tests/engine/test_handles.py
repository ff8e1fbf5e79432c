"""The handles of a store agree: a call of one is there on the others, and takes the same arguments.

A call that a handle cannot carry out is there, too, and says so.  What all of them lack is in the
lists at the top.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

import tidelog
import tidelog.testing
from tidelog import aio
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import Map
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.api.transaction_session import TransactionSession
from tidelog.errors import ReadOnlyError

RENAMED = {"close": "aclose", "update": "update_many"}
"""What a call is called under Trio."""
NOT_UNDER_TRIO = {"abandon", "name"}


def calls_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments_of(call: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


@pytest.mark.parametrize(
    ("sync", "trio"),
    [(Database, aio.Database), (Map, aio.Map), (tidelog.Transaction, aio.Transaction)],
)
def test_a_call_of_threads_is_there_for_tasks(sync: type, trio: type) -> None:
    lacking = calls_of(sync) - calls_of(trio) - NOT_UNDER_TRIO
    assert {name for name in lacking if RENAMED.get(name) not in calls_of(trio)} == set()


def test_a_call_of_a_database_is_there_where_it_is_only_read(tmp_path: Path) -> None:
    # `outcome`, `new_id` and `abandon` of a reader were an AttributeError.
    tidelog.open(tmp_path / "store").close()
    refused = {name for name in calls_of(Database) if is_refusal(name)}
    assert calls_of(Database) <= calls_of(ReadOnlyDatabase)
    with tidelog.open(tmp_path / "store", read_only=True) as reader:
        for name in refused:
            with pytest.raises(ReadOnlyError):
                getattr(reader, name)()
    assert refused >= {"transaction", "run", "outcome", "new_id", "abandon", "sync"}


def is_refusal(name: str) -> bool:
    return getattr(ReadOnlyDatabase, name, None) is ReadOnlyDatabase._refuse


def test_a_transaction_takes_the_same_arguments_wherever_it_begins() -> None:
    inner = arguments_of(TransactionSession)[1:]
    inner.remove("any_thread")  # which a handle knows by itself
    assert arguments_of(Database.transaction) == arguments_of(aio.Database.transaction) == inner


def test_an_open_takes_the_same_arguments_wherever_it_is_called() -> None:
    taken = arguments_of(tidelog.open)
    assert arguments_of(opens.open_with) == ["environment", *taken]
    assert [name for name in arguments_of(aio.open) if name != "reads"] == taken


def shown(thing: object) -> set[str]:
    """What an editor completes."""
    return {name for name in dir(thing) if not name.startswith("_")}


def test_what_users_hold_shows_what_is_for_them_and_nothing_else(tmp_path: Path) -> None:
    # A snapshot showed 19 names of the store's own, the module its machinery.
    with (
        tidelog.open(tmp_path / "store") as db,
        db.snapshot() as old,
        db.transaction(plain_writes=True) as tx,
    ):
        users = db.map("users")
        assert shown(old) == {"close", "position"}
        assert shown(tx) == {"commit", "in_doubt", "receipt", "rollback", "tx_id"}
        of_mappings = shown(MutableMapping)
        for handle in (users, old[users], tx[users]):
            assert handle.get(b"ada") is None  # which makes what reads
            assert shown(handle) - of_mappings == {
                *("compare_and_set", "delete_many", "delete_range", "discard", "first", "get_many"),
                *("incr", "last", "load", "name", "range", "set", "update_many"),
            }
    with tidelog.open(tmp_path / "store", read_only=True) as reader, reader.snapshot() as old:
        assert shown(old) == {"close", "position"}
    assert dir(tidelog) == sorted(tidelog.__all__)
    assert dir(tidelog.testing) == sorted(tidelog.testing.__all__)


@pytest.mark.loops
async def test_what_the_handles_of_tasks_show_is_what_the_docs_name(tmp_path: Path) -> None:
    # There were 35 names of a store, and 10 more of a transaction.
    async with aio.open(tmp_path / "store", partitions=1) as db:
        assert shown(db) == {
            *("database", "path", "read_only", "map", "maps", "drop", "rename", "attach"),
            *("transaction", "run", "attempts", "new_id", "outcome", "snapshot"),
            *("checkpoint", "sync", "backup", "refresh", "statistics", "aclose"),
        }
        users = db.map("users")
        assert shown(users) == calls_of(Map) - set(RENAMED) | {
            *("update_many", "ensure", "get_nowait", "set", "delete", "contains", "count"),
        }
        assert shown(db.transaction()) == {"receipt", "tx_id", "in_doubt", "commit", "rollback"}
        assert shown(db.snapshot()) == {"position", "close"}


@pytest.mark.parametrize("call", ["map", "drop", "rename", "attach", "run", "attempts", "backup"])
def test_a_call_takes_the_same_arguments_for_tasks(call: str) -> None:
    assert arguments_of(getattr(aio.Database, call)) == arguments_of(getattr(Database, call))
