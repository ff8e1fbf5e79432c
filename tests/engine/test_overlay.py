"""The overlay against a plain list of updates, whatever is sealed, snapshotted or flushed."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, cast

import pytest

from support.interrupts import Interrupt, Tracer
from tidelog.engine.data.overlay import FEW_KEYS, Layer, Overlay, View, merged, since
from tidelog.engine.system.environment import KvTransaction

PARTITIONS = range(2)
KEYS = [b"%d" % number for number in range(12)]

Content = dict[tuple[int, bytes], bytes]


class Committed:
    """What LMDB holds, as a read transaction sees it; a full key here is partition and key."""

    def __init__(self, content: Content) -> None:
        self.content = content

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        return self.content.get((key[0], key[1:]), default)


def over(content: Content) -> KvTransaction:
    return cast(KvTransaction, Committed(content))


def full(partition: int, key: bytes) -> bytes:
    return bytes([partition]) + key


def seen(view: View) -> Content:
    """Everything that a view answers, key by key."""
    found = {}
    for partition in PARTITIONS:
        for key in KEYS:
            stored = view.stored(partition, full(partition, key))
            if stored is not None:
                found[partition, key] = stored
    return found


def seen_by_scan(view: View, below: Content) -> Content:
    """The same through the sorted keys of each layer."""
    found = dict(below)
    for layer in reversed(view.layers):
        for partition in PARTITIONS:
            keys = layer.keys_of(partition)
            assert keys == sorted(layer.parts.get(partition, ()))
            for key in keys:
                found[partition, key[1:]] = layer.parts[partition][key]
    return found


@dataclass
class Taken:
    """A snapshot, and what the twin says about it."""

    view: View
    boundary: Layer
    content: Content
    below: Content
    sequence: int


class Twin:
    """An overlay beside the list of everything that was put into it."""

    def __init__(self) -> None:
        self.below: Content = {}
        self.overlay = Overlay(over(self.below))
        self.updates: list[tuple[int, int, bytes, bytes]] = []
        self.snapshots: list[Taken] = []
        self.flushed: list[Layer] = []
        self.flushed_content: Content = {}

    @property
    def content(self) -> Content:
        return {(partition, key): value for _, partition, key, value in self.updates}

    def put(self, partition: int, key: bytes, value: bytes) -> None:
        part = self.overlay.active.part(partition)
        part[full(partition, key)] = value
        self.overlay.active.bytes += 1
        self.updates.append((len(self.updates), partition, key, value))

    def snapshot(self) -> None:
        view, boundary = self.overlay.snapshot()
        self.snapshots.append(Taken(view, boundary, self.content, self.below, len(self.updates)))

    def end(self, taken: Taken) -> None:
        self.snapshots.remove(taken)
        self.overlay.ended.append(taken.boundary)

    def begin_flush(self) -> None:
        self.flushed_content = self.content
        self.flushed = self.overlay.begin_flush()

    def end_flush(self) -> None:
        parts = merged(self.flushed)
        written = {
            (partition, key[1:]): value
            for partition, part in parts.items()
            for key, value in part.items()
        }
        below = {**self.below, **written}
        assert below == self.flushed_content
        self.below = below
        self.overlay.end_flush(self.flushed, over(below))
        self.flushed = []

    def abandon_flush(self) -> None:
        self.overlay.abandon_flush()
        self.flushed = []

    def check(self) -> None:
        assert seen(self.overlay.view) == self.content
        for taken in self.snapshots:
            assert seen(taken.view) == taken.content
            assert seen_by_scan(taken.view, taken.below) == taken.content
            changed = {
                (partition, key[1:])
                for layer in since(taken.boundary)
                for partition, part in layer.parts.items()
                for key in part
            }
            assert changed == {(p, key) for n, p, key, _ in self.updates[taken.sequence :]}
        layers = self.overlay.view.layers
        assert self.overlay.layers == len(layers)
        assert self.overlay.bytes == sum(layer.bytes for layer in layers)
        assert self.overlay.newer_bytes == sum(layer.bytes for layer in layers[:-1])

    def step(self, rng: random.Random) -> None:
        match rng.choices("psemfax", (8, 4, 4, 1, 2, 1, 1))[0]:
            case "s":
                self.snapshot()
            case "e" if self.snapshots:
                self.end(rng.choice(self.snapshots))
            case "m":
                self.overlay.take_up_ended()
            case "f" if not self.flushed:
                self.begin_flush()
            case "f":
                self.end_flush()
            case "a" if self.flushed:
                self.abandon_flush()
            case "x":
                self.overlay.seal()
            case _:
                self.put(rng.choice(PARTITIONS), rng.choice(KEYS), b"%d" % len(self.updates))


@pytest.mark.parametrize("seed", range(40))
def test_every_view_is_what_the_list_of_updates_says(seed: int) -> None:
    rng, twin = random.Random(seed), Twin()
    for _ in range(60):
        twin.step(rng)
        twin.check()


@pytest.mark.parametrize("seed", range(40))
def test_layers_merge_once_no_snapshot_needs_their_borders(seed: int) -> None:
    rng, twin = random.Random(seed), Twin()
    for number in range(30):
        twin.put(0, rng.choice(KEYS), b"%d" % number)
        if rng.random() < 0.5:
            twin.snapshot()
        if twin.snapshots and rng.random() < 0.4:
            twin.end(rng.choice(twin.snapshots))
            twin.overlay.take_up_ended()
            twin.check()
        # Each layer but the active one is the newest of a snapshot, or waits to be merged.
        borders = Counter(id(taken.boundary) for taken in twin.snapshots)
        assert twin.overlay.layers <= len(borders) + 1
    for taken in rng.sample(twin.snapshots, len(twin.snapshots)):
        twin.end(taken)
        twin.overlay.take_up_ended()
        twin.check()
    assert twin.overlay.layers == 1
    assert twin.overlay.bytes == 30


def test_a_snapshot_of_an_empty_overlay_reads_the_data_alone_and_still_sees_what_comes() -> None:
    twin = Twin()
    twin.snapshot()
    assert twin.snapshots[0].view.layers == ()
    for value in (b"1", b"2"):
        twin.put(0, b"1", value)
        twin.overlay.seal()
    twin.check()
    assert len(list(since(twin.snapshots[0].boundary))) == 3
    twin.end(twin.snapshots[0])
    twin.overlay.take_up_ended()
    twin.check()


def test_an_ended_snapshot_changes_nothing_before_it_is_taken_up() -> None:
    # A finalizer may run under the very mutex that guards the overlay.
    twin = Twin()
    twin.put(0, b"1", b"1")
    twin.snapshot()
    twin.put(0, b"1", b"2")
    before = twin.overlay.view
    twin.end(twin.snapshots[0])
    assert twin.overlay.view is before
    twin.snapshot()
    assert twin.overlay.layers == 2
    twin.check()


def test_two_snapshots_of_one_moment_keep_their_layer_until_both_have_ended() -> None:
    twin = Twin()
    twin.put(0, b"1", b"1")
    twin.snapshot()
    twin.snapshot()
    twin.put(0, b"1", b"2")
    twin.end(twin.snapshots[0])
    twin.overlay.take_up_ended()
    twin.check()
    assert twin.overlay.layers == 2
    twin.end(twin.snapshots[0])
    twin.overlay.take_up_ended()
    assert twin.overlay.layers == 1


def test_layers_that_are_being_flushed_are_not_merged() -> None:
    twin = Twin()
    twin.put(0, b"1", b"1")
    twin.snapshot()
    twin.put(0, b"1", b"2")
    twin.begin_flush()
    parts = [dict(layer.parts[0]) for layer in twin.flushed]
    twin.put(0, b"1", b"3")
    twin.end(twin.snapshots[0])
    twin.overlay.take_up_ended()
    assert [layer.parts[0] for layer in twin.flushed] == parts
    twin.end_flush()
    twin.check()
    assert twin.overlay.layers == 1


def test_a_flush_that_was_abandoned_leaves_one_layer_where_nobody_needs_more() -> None:
    twin = Twin()
    for number in range(3):
        twin.put(0, b"1", b"%d" % number)
        twin.snapshot()
    twin.begin_flush()
    for taken in list(twin.snapshots):
        twin.end(taken)
    twin.overlay.take_up_ended()
    twin.put(0, b"2", b"3")
    assert twin.overlay.layers == 4
    twin.abandon_flush()
    assert twin.overlay.layers == 1
    twin.check()


def test_a_flush_of_nothing_takes_nothing_away() -> None:
    twin = Twin()
    twin.begin_flush()
    assert twin.flushed == []
    twin.put(0, b"1", b"1")
    twin.overlay.end_flush([], over(twin.below))
    twin.check()


def test_keys_that_were_sorted_while_a_layer_was_active_are_sorted_again() -> None:
    # A scan of a snapshot that was ended under it sorted the keys of a layer that had become
    # active again; later snapshots of that layer lost what was put after that.
    twin = Twin()
    twin.put(0, b"1", b"1")
    twin.snapshot()
    twin.end(twin.snapshots[0])
    twin.overlay.take_up_ended()
    assert twin.overlay.active.keys_of(0) == [full(0, b"1")]
    twin.put(0, b"2", b"2")
    twin.snapshot()
    twin.check()


@pytest.mark.parametrize("seed", range(5))
def test_keys_that_come_later_find_their_place_among_those_sorted_before(seed: int) -> None:
    rng = random.Random(seed)
    layer = Layer()
    for _ in range(20):
        many = rng.choice((0, 1, FEW_KEYS, FEW_KEYS + 1, 300))
        layer.part(0).update({rng.randbytes(rng.randint(1, 3)): b"v" for _ in range(many)})
        before = layer.keys_of(0)
        assert before == sorted(layer.part(0))
        assert layer.keys_of(0) is before or not before


def test_keys_are_sorted_while_another_thread_merges_layers() -> None:
    # `dictionary changed size during iteration`, once in some thousand scans. Another thread may
    # run between any two instructions: so it does here, at every one of them.
    layer, newer = Layer(), Layer()
    layer.parts[0] = {b"a": b"v"}
    merged_keys = count()

    def merge(frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code is Layer.keys_of.__code__:
            frame.f_trace_opcodes = True
            newer.parts[0] = {b"%06d" % next(merged_keys): b"v"}
            layer.absorb(newer)
            return merge
        return None

    before = sys.gettrace()
    sys.settrace(merge)
    try:
        found = [layer.keys_of(0) for _ in range(20)]
    finally:
        sys.settrace(before)
    assert next(merged_keys) > 500
    for keys in found:
        assert keys == sorted(keys)
        assert set(keys) <= layer.parts[0].keys()
    assert layer.keys_of(0) == sorted(layer.parts[0])


def kept_apart() -> Twin:
    """Layers that only snapshots keep apart; of these some have ended, and are not taken up yet."""
    twin = Twin()
    for number in range(6):
        twin.put(number % 2, b"1", b"%d" % number)
        twin.put(0, b"%d" % number, b"%d" % number)
        twin.snapshot()
    for taken in (twin.snapshots[1], twin.snapshots[2], twin.snapshots[5]):
        twin.end(taken)
    twin.put(1, b"1", b"newest")
    return twin


def being_flushed() -> Twin:
    twin = kept_apart()
    twin.begin_flush()
    twin.put(0, b"1", b"behind the flush")
    return twin


@pytest.mark.parametrize(
    ("made", "change"),
    [
        (kept_apart, Twin.snapshot),
        (kept_apart, Twin.begin_flush),
        (being_flushed, Twin.end_flush),
        (being_flushed, Twin.abandon_flush),
    ],
)
def test_a_change_that_is_interrupted_at_any_line_loses_nothing(
    made: Callable[[], Twin], change: Callable[[Twin], None]
) -> None:
    # What was committed behind an interrupt in `seal` or in a merge was lost, without an error.
    counted = Tracer()
    counted.run(partial(change, made()))
    lines = [(line, passed) for line, times in counted.lines.items() for passed in range(times)]
    assert len(lines) >= 3
    for at in lines:
        twin, interrupted = made(), Tracer(at)
        with pytest.raises(Interrupt):
            interrupted.run(partial(change, twin))
        twin.check()
        twin.put(0, b"1", b"behind the interrupt")
        twin.abandon_flush()
        twin.snapshot()
        twin.put(1, b"1", b"and behind that")
        twin.check()
        for taken in list(twin.snapshots):
            twin.end(taken)
        twin.begin_flush()
        twin.end_flush()
        twin.check()
        assert twin.overlay.layers == 1, interrupted.where
        assert twin.overlay.bytes == 0, interrupted.where


def test_merging_gives_the_newest_value_of_each_key_and_leaves_the_layers_alone() -> None:
    old, new = Layer(), Layer()
    old.part(0).update({b"a": b"1", b"b": b"1"})
    new.part(0).update({b"b": b"2"})
    new.part(1).update({b"c": b"2"})
    assert merged([old, new]) == {0: {b"a": b"1", b"b": b"2"}, 1: {b"c": b"2"}}
    assert old.parts == {0: {b"a": b"1", b"b": b"1"}}
    assert merged([]) == {}


def test_a_layer_takes_no_memory_for_what_it_has_forgotten() -> None:
    # One that lost all its partitions kept their bytes: each checkpoint found it too large, and
    # carried nothing over.
    layer = Layer()
    for index in range(20):
        layer.put(1, b"key %d" % index, b"v" * 100)
    of_one = layer.bytes
    layer.put(2, b"key", b"v" * 50)
    both = layer.bytes
    layer.forget(1)
    assert layer.bytes == both - of_one
    layer.forget(3)
    assert layer.bytes == both - of_one
    layer.bytes += 7  # what is overwritten counts on
    layer.forget(2)
    assert layer.bytes == 0
