"""A store against a dict of dicts: whatever is done, both show the same."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.loads import make_load
from support.real_stores import expect_sound, opened
from tidelog import codecs
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import Map
from tidelog.engine.api.snapshots import Snapshot
from tidelog.engine.api.transactions import Transaction
from tidelog.errors import ConflictError, NotFoundError, UsageError
from tidelog.testing import check_database


class Shape(NamedTuple):
    """A map's codecs, and what keys and values to try; prefixes are of keys that share them."""

    key: codecs.Codec[Any]
    value: codecs.Codec[Any]
    keys: st.SearchStrategy[Any]
    values: st.SearchStrategy[Any]
    prefixes: st.SearchStrategy[Any] | None
    begins: Callable[[Any, Any], bool] = lambda key, prefix: bool(key.startswith(prefix))


_words = st.sampled_from(["", "a", "ab", "abc", "b", "ba", "z\u00fc", "z\U0001f30a", "\uffff", "0"])
_numbers = st.sampled_from([-(1 << 63), -300, -1, 0, 1, 2, 255, 256, (1 << 63) - 1])
_documents = st.recursive(
    st.none() | st.integers(-(1 << 40), 1 << 40) | st.text(max_size=4) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
).filter(lambda value: value is not None)

SHAPES = {
    "bytes": Shape(
        codecs.Bytes,
        codecs.Bytes,
        st.binary(min_size=1, max_size=2) | st.sampled_from([b"\xff" * n for n in (1, 2, 3)]),
        st.binary(max_size=3) | st.sampled_from([b"", bytes(300), b"long" * 2000]),
        st.sampled_from([b"\xff", b"\xff\xff", b"\0", b"a"]),
    ),
    "words": Shape(
        codecs.Str,
        codecs.Json,
        _words.filter(bool),
        _documents,
        st.sampled_from(["a", "ab", "z", "\uffff"]),
    ),
    "numbers": Shape(codecs.I64, codecs.I64, _numbers, _numbers, None),
    "pairs": Shape(
        codecs.Tuple,
        codecs.Msgpack,
        st.tuples(_words, _numbers),
        _documents,
        st.tuples(_words),
        lambda key, prefix: bool(key[: len(prefix)] == prefix),
    ),
}

Model = dict[str, dict[Any, Any]]

_names = st.sampled_from(sorted(SHAPES))


class Held(NamedTuple):
    """A snapshot and what it must show for ever."""

    snapshot: Snapshot
    model: Model
    maps: dict[str, Map[Any, Any]]


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidelog-model-"))
        self.path = self.folder / "store"
        self.model: Model = {}
        self.held: list[Held] = []
        self.loads = 0
        self.db: Database
        self.maps: dict[str, Map[Any, Any]] = {}

    @initialize(partitions=st.sampled_from([1, 3, 16]), data=st.data())
    def begin(self, partitions: int, data: st.DataObject) -> None:
        self.partitions = partitions
        self.open(data)

    def open(self, data: st.DataObject) -> None:
        self.db = opened(
            self.path,
            partitions=self.partitions,
            durability=data.draw(st.sampled_from(["none", "interval", "none", "always"])),
            checkpoint_bytes=data.draw(st.sampled_from([1000, 20_000, 1 << 20])),
            segment_bytes=data.draw(st.sampled_from([1, 200_000])),
            retain_bytes=data.draw(st.sampled_from([1, 1 << 20])),
        )
        assert self.db.maps() == sorted(self.model)
        self.maps = {name: self.db.map(name) for name in self.model}

    def map(self, name: str) -> Map[Any, Any]:
        if name not in self.maps:
            shape = SHAPES[name]
            self.maps[name] = self.db.map(name, key=shape.key, value=shape.value)
            self.model[name] = {}
        return self.maps[name]

    # ------------------------------------------------------------------ one key

    @rule(name=_names, data=st.data())
    def put(self, name: str, data: st.DataObject) -> None:
        key, value = self.pair(name, data)
        self.map(name)[key] = value
        self.model[name][key] = value

    @rule(name=_names, data=st.data())
    def delete(self, name: str, data: st.DataObject) -> None:
        key = data.draw(SHAPES[name].keys)
        mapping, model = self.map(name), self.model[name]
        if key in model:
            del mapping[key], model[key]
        else:
            with pytest.raises(KeyError):
                del mapping[key]

    @rule(name=_names, data=st.data())
    def discard(self, name: str, data: st.DataObject) -> None:
        key = data.draw(SHAPES[name].keys)
        self.map(name).discard(key)
        self.model[name].pop(key, None)

    @rule(name=_names, data=st.data())
    def pop_and_set_default(self, name: str, data: st.DataObject) -> None:
        key, value = self.pair(name, data)
        mapping, model = self.map(name), self.model[name]
        assert mapping.pop(key, value) == model.pop(key, value)
        assert mapping.setdefault(key, value) == model.setdefault(key, value)

    @rule(name=_names)
    def pop_the_first(self, name: str) -> None:
        mapping, model = self.map(name), self.model[name]
        if model:
            first = min(model)
            assert mapping.popitem() == (first, model.pop(first))
        else:
            with pytest.raises(KeyError):
                mapping.popitem()

    @rule(key=_numbers, delta=st.integers(-3, 3))
    def count(self, key: int, delta: int) -> None:
        mapping, model = self.map("numbers"), self.model["numbers"]
        total = model.get(key, 0) + delta
        if -(1 << 63) <= total < 1 << 63:
            assert mapping.incr(key, delta) == total
            model[key] = total

    @rule(name=_names, data=st.data(), right=st.booleans())
    def compare_and_set(self, name: str, data: st.DataObject, right: bool) -> None:
        key, value = self.pair(name, data)
        mapping, model = self.map(name), self.model[name]
        expected = model.get(key) if right else data.draw(st.none() | SHAPES[name].values)
        new = data.draw(st.none() | st.just(value))
        swapped = model.get(key) == expected
        assert mapping.compare_and_set(key, expected, new) == swapped
        if swapped and new is None:
            model.pop(key, None)
        elif swapped:
            model[key] = new

    # ------------------------------------------------------------------ many keys

    @rule(name=_names, data=st.data(), batch=st.sampled_from([None, 1, 3]))
    def set_many(self, name: str, data: st.DataObject, batch: int | None) -> None:
        pairs = data.draw(st.dictionaries(SHAPES[name].keys, SHAPES[name].values, max_size=8))
        if batch is None:
            self.map(name).update_many(pairs)
        else:
            assert self.map(name).load(iter(pairs.items()), batch=batch) == len(pairs)
        self.model[name].update(pairs)

    @rule(name=_names)
    def clear(self, name: str) -> None:
        self.map(name).clear()
        self.model[name].clear()

    @rule(first=st.integers(-5, 5), size=st.integers(50, 400))
    def fill(self, first: int, size: int) -> None:
        pairs = {number: number * 7 for number in range(first, first + size)}
        self.map("numbers").update_many(pairs)
        self.model["numbers"].update(pairs)

    # ------------------------------------------------------------------ maps

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        gone = self.maps.pop(name)
        self.db.drop(name)
        del self.model[name]
        with pytest.raises(NotFoundError):
            self.db.drop(name)
        with pytest.raises(NotFoundError):
            gone.get(data.draw(SHAPES[name].keys))
        with pytest.raises(NotFoundError):
            gone.update_many([self.pair(name, data)])

    @rule(data=st.data(), name=_names, files=st.integers(1, 3))
    def attach(self, data: st.DataObject, name: str, files: int) -> None:
        shape = SHAPES[name]
        rows = data.draw(st.dictionaries(shape.keys, shape.values, max_size=20))
        self.loads += 1
        load = make_load(
            self.folder / f"load-{self.loads}",
            {shape.key.encode(key): shape.value.encode(value) for key, value in rows.items()},
            partitions=self.partitions,
            name=name,
            files=files,
            key_codec=(shape.key.name, shape.key.version),
            value_codec=(shape.value.name, shape.value.version),
        )
        if name in self.model:
            with pytest.raises(UsageError):
                self.db.attach(load)
        else:
            self.maps[name] = self.db.attach(load)
            self.model[name] = rows

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rename_and_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.db.rename(name, "renamed")
        assert self.maps[name].name == "renamed"
        assert "renamed" in self.db.maps()
        assert dict(self.db.map("renamed").items()) == self.model[name]
        with pytest.raises(UsageError):
            self.db.rename("renamed", "renamed")
        self.db.rename("renamed", name)

    # ------------------------------------------------------------------ transactions

    @rule(data=st.data(), mode=st.sampled_from(["optimistic", "pessimistic"]), good=st.booleans())
    def transact(self, data: st.DataObject, mode: Any, good: bool) -> None:
        """Several keys of several maps; it commits, or leaves nothing."""
        inside = {name: dict(pairs) for name, pairs in self.model.items()}
        tx = self.db.transaction(mode)
        for _ in range(data.draw(st.integers(1, 5))):
            name = data.draw(_names)
            self.map(name)
            inside.setdefault(name, {})
            self.step(tx, inside, name, data)
        if good:
            with tx:
                pass
            assert tx.receipt is not None
            assert self.db.outcome(tx.receipt.tx_id) in ("committed", "rolled_back", "too_old")
            self.model.update(inside)
        else:
            with pytest.raises(ZeroDivisionError), tx:
                raise ZeroDivisionError

    def step(self, tx: Transaction, inside: Model, name: str, data: st.DataObject) -> None:
        key, value = self.pair(name, data)
        mapping, model = tx[self.maps[name]], inside[name]
        match data.draw(st.sampled_from(["put", "delete", "read", "scan", "count"])):
            case "put":
                mapping[key] = model[key] = value
            case "delete":
                mapping.discard(key)
                model.pop(key, None)
            case "read":
                assert mapping.get(key) == model.get(key)
            case "scan":
                self.scan_one(mapping, model, name, data)
            case "count":
                assert len(mapping) == len(model)

    @rule(data=st.data(), name=_names, other=_names, scanned=st.booleans())
    def conflict(self, data: st.DataObject, name: str, other: str, scanned: bool) -> None:
        """What a transaction read is changed by others before it commits."""
        key, value = self.pair(name, data)
        mine, my_value = self.pair(other, data)
        reads, writes = self.map(name), self.map(other)
        tx = self.db.transaction()
        if scanned:
            assert dict(tx[reads].items()) == self.model[name]
        else:
            assert tx[reads].get(key) == self.model[name].get(key)
        tx[writes][mine] = my_value
        self.maps[name][key] = value
        self.model[name][key] = value
        with pytest.raises(ConflictError) as caught:
            tx.commit()
        assert caught.value.namespace == name
        assert caught.value.key == SHAPES[name].key.encode(key)
        assert self.maps[other].get(mine) == self.model[other].get(mine)

    # ------------------------------------------------------------------ ordered reads

    @rule(data=st.data(), name=_names)
    def scan(self, data: st.DataObject, name: str) -> None:
        self.scan_one(self.map(name), self.model[name], name, data)

    def scan_one(
        self, mapping: Map[Any, Any], model: dict[Any, Any], name: str, data: st.DataObject
    ) -> None:
        shape = SHAPES[name]
        bounds = st.none() | shape.keys
        start, stop = data.draw(bounds), data.draw(bounds)
        reverse, limit = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0, 1, 3]))
        inside = {key for key in model if start is None or key >= start}
        keys = sorted((k for k in inside if stop is None or k < stop), reverse=reverse)[:limit]
        found = list(mapping.range(start, stop, reverse=reverse, limit=limit))
        assert found == [(key, model[key]) for key in keys]
        if shape.prefixes is not None:
            prefix = data.draw(shape.prefixes)
            keys = sorted(key for key in model if shape.begins(key, prefix))
            assert list(mapping.items(prefix)) == [(key, model[key]) for key in keys]
            assert list(mapping.keys(prefix)) == keys

    @rule(data=st.data(), name=_names)
    def get_many(self, data: st.DataObject, name: str) -> None:
        keys = data.draw(st.lists(SHAPES[name].keys, max_size=5))
        model = self.model.get(name, {})
        assert self.map(name).get_many(keys) == {key: model[key] for key in keys if key in model}

    # ------------------------------------------------------------------ snapshots

    @precondition(lambda self: len(self.held) < 3)
    @rule()
    def hold(self) -> None:
        model = {name: dict(pairs) for name, pairs in self.model.items()}
        self.held.append(Held(self.db.snapshot(), model, dict(self.maps)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compare_held(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        for name, pairs in held.model.items():
            mapping = held.snapshot[held.maps[name]]
            assert dict(mapping.items()) == pairs
            assert mapping.get_many(pairs) == pairs
            self.scan_one(mapping, pairs, name, data)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1))).snapshot.close()

    # ------------------------------------------------------------------ life

    @rule()
    def checkpoint(self) -> None:
        assert self.db.checkpoint() <= self.db.statistics().position

    @rule()
    def maintain(self) -> None:
        session_of(self.db).maintenance.maintain()

    @rule()
    def check(self) -> None:
        assert check_database(self.db) == []

    @rule(data=st.data(), crash=st.booleans())
    def reopen(self, data: st.DataObject, crash: bool) -> None:
        self.held.clear()
        self.maps.clear()
        if crash:
            session_of(self.db).abandon()
        else:
            self.db.close()
        expect_sound(self.path)
        self.open(data)
        self.shows_the_model()

    @invariant()
    def every_map_is_there(self) -> None:
        if hasattr(self, "db"):
            assert self.db.maps() == sorted(self.model)

    def shows_the_model(self) -> None:
        for name, pairs in self.model.items():
            assert list(self.maps[name].items()) == sorted(pairs.items(), key=lambda pair: pair[0])

    def pair(self, name: str, data: st.DataObject) -> tuple[Any, Any]:
        return data.draw(SHAPES[name].keys), data.draw(SHAPES[name].values)

    def teardown(self) -> None:
        try:
            if hasattr(self, "db"):
                self.shows_the_model()
                self.db.close()
                expect_sound(self.path)
        finally:
            # Also where Hypothesis has run out of choices between a close and an open.
            shutil.rmtree(self.folder)


def search(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_a_store_shows_what_its_model_shows() -> None:
    search(40, 30)


@pytest.mark.nightly
def test_a_store_shows_what_its_model_shows_in_a_long_search() -> None:
    search(2_000, 60)


@pytest.fixture(autouse=True)
def _no_example_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []
