"""Isolation levels and read sets: the table, conflicts by hand, then against reading again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tidelog.errors import TransactionTooLargeError, UsageError
from tidelog.tx import validation
from tidelog.tx.validation import (
    READ_RULES,
    RangeRead,
    ReadLocks,
    ReadSet,
    Validated,
    first_changed,
    first_conflict,
    first_lost_update,
    first_overwritten,
    read_rule,
)

P0, P1 = b"\0\0\0\0\0\0\0\x10", b"\0\0\0\1\0\0\0\x10"
LAST = b"\xff" * 8


class Committed:
    """Committed keys and versions, with the two ways of looking at them that a commit has."""

    def __init__(self, **versions: str) -> None:
        self.versions = {P0 + k.encode(): v.encode() for k, v in versions.items()}

    def get(self, key: bytes) -> bytes | None:
        return self.versions.get(key)

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.versions):
            if start <= key and (stop is None or key < stop):
                yield key, self.versions[key]

    def conflict(self, reads: ReadSet, *pending: bytes) -> bytes | None:
        return first_conflict(reads, self.get, self.range, set(pending))


def scanned(
    store: Committed,
    reads: ReadSet,
    start: bytes = b"",
    stop: bytes | None = None,
    *,
    prefixes: tuple[bytes, ...] = (P0,),
    limit: int | None = None,
    reverse: bool = False,
) -> RangeRead:
    """Scan as the engine does: user keys of all prefixes in one order, until ``limit`` are out."""
    read = reads.scan(prefixes, start, stop, reverse=reverse)
    found = sorted(
        (key[8:], key, version)
        for key, version in store.versions.items()
        if key[:8] in prefixes and start <= key[8:] and (stop is None or key[8:] < stop)
    )
    if reverse:
        found.reverse()
    for item in found[:limit]:
        read.saw(*item)
    if limit is None:
        read.finish()
    return read


# ------------------------------------------------------------------ the table of levels


def test_the_table_in_the_module_says_what_the_rules_say() -> None:
    assert validation.__doc__ is not None
    lines = [line.split() for line in validation.__doc__.splitlines()]
    rows = {(w[1], w[2]): w for w in lines if len(w) > 5 and (w[1], w[2]) in READ_RULES}
    assert rows.keys() == READ_RULES.keys()
    locks = {
        "none": ReadLocks.NOTHING,
        "each key read, each range scanned": ReadLocks.KEYS_AND_RANGES,
        "each key read, each key a scan returned": ReadLocks.KEYS,
    }
    for key, (row, _, _, reads, validated, *read_locks) in rows.items():
        rule = READ_RULES[key]
        assert (rule.row, rule.validated) == (row, Validated(validated))
        assert rule.snapshot == (reads == "snapshot")
        assert rule.read_locks is locks[" ".join(read_locks)]


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("isolation", ["serializable", "repeatable_read", "read_committed"])
def test_every_mode_has_every_isolation_level(mode: str, isolation: str) -> None:
    assert read_rule(mode, isolation) is READ_RULES[mode, isolation]


@pytest.mark.parametrize(
    ("mode", "isolation"),
    [
        ("optimistic", "snapshot"),
        ("eager", "serializable"),
        ("", ""),
        ("serializable", "optimistic"),
    ],
)
def test_an_unknown_level_is_an_error_that_names_the_known_ones(mode: str, isolation: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rule(mode, isolation)
    assert caught.value.hint == (
        "Modes are optimistic, pessimistic; "
        "isolation levels are serializable, repeatable_read, read_committed."
    )


def test_what_is_validated_was_read_from_one_snapshot() -> None:
    for rule in READ_RULES.values():
        assert rule.snapshot == (rule.validated is not Validated.NOTHING)


# ------------------------------------------------------------------ keys

POINTS: list[tuple[str, str | None, str | None, bool]] = [
    ("unchanged", "v1", "v1", False),
    ("changed", "v1", "v2", True),
    ("deleted", "v1", None, True),
    ("came", None, "v1", True),
    ("still absent", None, None, False),
]


@pytest.mark.parametrize(
    ("before", "now", "conflicts"), [pytest.param(*row[1:], id=row[0]) for row in POINTS]
)
def test_a_key_read_must_still_be_what_it_was(
    before: str | None, now: str | None, conflicts: bool
) -> None:
    reads = ReadSet()
    reads.record(P0 + b"k", before.encode() if before else None)
    store = Committed(**({"k": now} if now else {}), other="v9")
    assert store.conflict(reads) == (P0 + b"k" if conflicts else None)


def test_the_first_key_read_that_changed_is_named() -> None:
    reads = ReadSet()
    for name in (b"c", b"a", b"b"):
        reads.record(P0 + name, b"v1")
    assert Committed(a="v2", b="v2", c="v1").conflict(reads) == P0 + b"a"
    assert Committed(a="v1", b="v1", c="v1").conflict(reads, P0 + b"b", P0 + b"c") == P0 + b"c"


def test_a_key_that_the_same_group_has_written_conflicts_though_it_looks_unchanged() -> None:
    reads = ReadSet()
    reads.record(P0 + b"k", b"v1")
    store = Committed(k="v1")
    assert store.conflict(reads, P0 + b"j", P1 + b"k") is None
    assert store.conflict(reads, P0 + b"j", P0 + b"k") == P0 + b"k"


def test_pending_may_be_a_mapping_to_the_winner() -> None:
    reads = ReadSet()
    reads.record(P0 + b"k", b"v1")
    assert first_overwritten(reads, {P0 + b"k": "winner"}) == P0 + b"k"
    assert first_overwritten(reads, {P0 + b"l": "winner"}) is None
    assert first_overwritten(reads, {}) is None


def test_an_empty_read_set_is_false_and_never_conflicts() -> None:
    reads = ReadSet()
    assert not reads
    assert Committed(a="v2").conflict(reads, P0 + b"a") is None
    reads.record(P0 + b"k", None)
    assert reads
    assert repr(reads) == "<ReadSet keys=1 ranges=0>"


def test_a_scan_makes_a_read_set_true() -> None:
    reads = ReadSet()
    reads.scan((P0,), b"", None)
    assert reads
    assert repr(reads) == "<ReadSet keys=0 ranges=1>"


# ------------------------------------------------------------------ ranges

FIVE = {"b": "v1", "d": "v1", "f": "v1", "h": "v1", "j": "v1"}

# name, start, stop, limit, reverse, the change (key, version or None for a delete), conflict
SCANS: list[tuple[str, bytes, bytes | None, int | None, bool, str, str | None, str | None]] = [
    ("nothing changed", b"c", b"i", None, False, "z", "v1", None),
    ("a key of it changed", b"c", b"i", None, False, "f", "v2", "f"),
    ("a key of it went", b"c", b"i", None, False, "f", None, "f"),
    ("its first key went", b"c", b"i", None, False, "d", None, "d"),
    ("its last key went", b"c", b"i", None, False, "h", None, "h"),
    ("a key came in the middle", b"c", b"i", None, False, "e", "v1", "e"),
    ("a key came before the first", b"c", b"i", None, False, "c", "v1", "c"),
    ("a key came after the last", b"c", b"i", None, False, "hh", "v1", "hh"),
    ("a key came at the stop", b"c", b"i", None, False, "i", "v1", None),
    ("a key came below the start", b"c", b"i", None, False, "bb", "v1", None),
    ("no stop: a key came at the end", b"c", None, None, False, "z", "v1", "z"),
    ("an empty range stays empty", b"k", b"m", None, False, "j", "v2", None),
    ("a key came into an empty range", b"k", b"m", None, False, "l", "v1", "l"),
    ("stopped early: the last key out went", b"c", b"i", 2, False, "f", None, "f"),
    ("stopped early: the last key out changed", b"c", b"i", 2, False, "f", "v2", "f"),
    ("stopped early: a key came just after it", b"c", b"i", 2, False, "f\0", "v1", None),
    ("stopped early: a key came just before it", b"c", b"i", 2, False, "ee", "v1", "ee"),
    ("stopped early: the next key went", b"c", b"i", 2, False, "h", None, None),
    ("nothing consumed", b"c", b"i", 0, False, "d", None, None),
    ("backwards: a key went", b"c", b"i", None, True, "f", None, "f"),
    ("backwards, stopped early: the last key out went", b"c", b"i", 2, True, "f", None, "f"),
    ("backwards, stopped early: a key came after it", b"c", b"i", 2, True, "g", "v1", "g"),
    ("backwards, stopped early: a key came at the top", b"c", b"i", 2, True, "hz", "v1", "hz"),
    ("backwards, stopped early: a key came below it", b"c", b"i", 2, True, "e", "v1", None),
    ("backwards, stopped early: the next key went", b"c", b"i", 2, True, "d", None, None),
    ("backwards without stop: a key came at the end", b"c", None, 2, True, "z", "v1", "z"),
]


@pytest.mark.parametrize(
    ("start", "stop", "limit", "reverse", "key", "version", "conflict"),
    [pytest.param(*row[1:], id=row[0]) for row in SCANS],
)
def test_a_range_covers_what_was_consumed_of_it(
    start: bytes,
    stop: bytes | None,
    limit: int | None,
    reverse: bool,
    key: str,
    version: str | None,
    conflict: str | None,
) -> None:
    reads = ReadSet()
    scanned(Committed(**FIVE), reads, start, stop, limit=limit, reverse=reverse)
    after = {**FIVE, key: version}
    store = Committed(**{k: v for k, v in after.items() if v is not None})
    expected = None if conflict is None else P0 + conflict.encode()
    assert store.conflict(reads) == expected
    written = {P0 + key.encode()}
    assert first_overwritten(reads, written) == expected
    assert Committed(**FIVE).conflict(reads, *written) == expected
    assert Committed(**FIVE).conflict(reads) is None


def test_the_lowest_of_several_keys_that_went_is_named() -> None:
    reads = ReadSet()
    scanned(Committed(**FIVE), reads)
    assert Committed(b="v1", h="v1").conflict(reads) == P0 + b"d"


def test_a_key_that_only_this_transaction_wrote_extends_what_is_covered() -> None:
    reads = ReadSet()
    read = reads.scan((P0,), b"a", b"z")
    read.saw(b"b", P0 + b"b", b"v1")
    read.passed(b"e")
    assert list(read.intervals()) == [(P0 + b"a", P0 + b"e\0")]
    assert Committed(b="v1").conflict(reads) is None
    assert Committed(b="v1", d="v1").conflict(reads) == P0 + b"d"
    assert Committed(b="v1", e="v1").conflict(reads) == P0 + b"e"
    assert Committed(b="v1", f="v1").conflict(reads) is None


def test_giving_out_a_key_of_one_partition_covers_all_of_them_up_to_it() -> None:
    store = Committed(b="v1", f="v1")
    store.versions[P1 + b"c"] = b"v1"
    store.versions[P1 + b"g"] = b"v1"
    reads = ReadSet()
    scanned(store, reads, prefixes=(P0, P1), limit=2)
    assert store.conflict(reads) is None
    store.versions[P0 + b"d"] = b"v1"
    assert store.conflict(reads) is None
    store.versions[P0 + b"bb"] = b"v1"
    assert store.conflict(reads) == P0 + b"bb"


def test_a_range_without_stop_ends_with_its_prefix() -> None:
    reads = ReadSet()
    read = scanned(Committed(**FIVE), reads, b"k")
    assert list(read.intervals()) == [(P0 + b"k", P0[:7] + b"\x11")]
    namespace = b"\0\0\0\1\0\0\xff\xff"
    odd = reads.scan((namespace, LAST), b"k", None)
    odd.finish()
    assert list(odd.intervals()) == [
        (namespace + b"k", b"\0\0\0\1\0\1"),
        (LAST + b"k", None),
    ]
    assert first_overwritten(reads, {LAST + b"z"}) == LAST + b"z"


def test_a_range_of_too_many_keys_raises_and_names_the_weaker_level() -> None:
    read = ReadSet(range_keys_max=2).scan((P0,), b"", None)
    read.saw(b"a", P0 + b"a", b"v1")
    read.saw(b"b", P0 + b"b", b"v1")
    with pytest.raises(TransactionTooLargeError, match="more than 2 keys") as caught:
        read.saw(b"c", P0 + b"c", b"v1")
    assert "repeatable_read" in caught.value.hint


def test_a_hundred_thousand_keys_are_the_limit_unless_it_is_lifted() -> None:
    limited, free = ReadSet().scan((P0,), b"", None), ReadSet(range_keys_max=None)
    unlimited = free.scan((P0,), b"", None)
    for number in range(100_000):
        user_key = b"%06d" % number
        limited.saw(user_key, P0 + user_key, b"v1")
        unlimited.saw(user_key, P0 + user_key, b"v1")
    unlimited.saw(b"a", P0 + b"a", b"v1")
    with pytest.raises(TransactionTooLargeError):
        limited.saw(b"a", P0 + b"a", b"v1")


# ------------------------------------------------------------------ repeatable read

WRITES: list[tuple[str, list[str], list[str], list[str], str | None]] = [
    # name, keys read, keys written, keys that others changed since the snapshot, conflict
    ("read and written, changed", ["b"], ["b"], ["b"], "b"),
    ("read and written, unchanged", ["b"], ["b"], ["d"], None),
    ("read only, changed", ["b"], ["d"], ["b"], None),
    ("written only, changed", ["d"], ["b"], ["b"], None),
    ("read as absent and written, came", ["x"], ["x"], ["x"], "x"),
    ("the first written one is named", ["b", "d"], ["d", "b"], ["b", "d"], "d"),
]


@pytest.mark.parametrize(
    ("read", "written", "changed", "conflict"),
    [pytest.param(*row[1:], id=row[0]) for row in WRITES],
)
def test_the_first_committer_wins_on_keys_that_are_read_and_written(
    read: list[str], written: list[str], changed: list[str], conflict: str | None
) -> None:
    snapshot, now = Committed(**FIVE), Committed(**{**FIVE, **dict.fromkeys(changed, "v2")})
    reads = ReadSet(Validated.WRITTEN)
    for name in read:
        reads.record(P0 + name.encode(), snapshot.get(P0 + name.encode()))
    writes = [P0 + name.encode() for name in written]
    expected = None if conflict is None else P0 + conflict.encode()
    assert first_lost_update(reads, writes, set(), snapshot.get, now.get) == expected
    pending = {P0 + name.encode() for name in changed}
    assert first_lost_update(reads, writes, pending, snapshot.get, snapshot.get) == expected


def test_a_key_that_a_scan_gave_out_counts_as_read_at_repeatable_read() -> None:
    snapshot, now = Committed(**FIVE), Committed(**{**FIVE, "d": "v2", "h": "v2"})
    reads = ReadSet(Validated.WRITTEN, range_keys_max=1)
    scanned(snapshot, reads, b"c", b"z", limit=2)

    def conflict(*names: bytes) -> bytes | None:
        own = [P0 + name for name in names]
        return first_lost_update(reads, own, set(), snapshot.get, now.get)

    assert conflict(b"f") is None
    assert conflict(b"h") is None
    assert conflict(b"f", b"d") == P0 + b"d"


def test_a_scan_at_repeatable_read_keeps_no_keys() -> None:
    read = ReadSet(Validated.WRITTEN).scan((P0,), b"", None)
    read.saw(b"b", P0 + b"b", b"v1")
    assert read.seen is None
    assert list(read.intervals()) == [(P0, P0 + b"b\0")]


# ------------------------------------------------------------------ against reading it all again

Seen = list[tuple[bytes, bytes]]


class Script:
    """A random list of reads, run once to fill a read set and again to see what it sees then."""

    def __init__(self, rng: random.Random) -> None:
        self.points = [_full(_letter(rng)) for _ in range(rng.randrange(3))]
        self.scans = [
            (min(pair), max(pair), rng.choice((None, 1, 2, 5)), rng.random() < 0.5)
            for pair in [(_letter(rng), _letter(rng)) for _ in range(rng.randrange(3))]
        ]

    def run(self, store: Committed, reads: ReadSet) -> list[object]:
        results: list[object] = []
        for key in self.points:
            reads.record(key, store.get(key))
            results.append(store.get(key))
        for start, stop, limit, reverse in self.scans:
            read = scanned(
                store, reads, start, stop, prefixes=(P0, P1), limit=limit, reverse=reverse
            )
            assert read.seen is not None
            results.append(list(read.seen.items()))
        return results


def _full(user_key: bytes) -> bytes:
    """Return the full key; as in a store, a user key lives in one partition only."""
    return (P0, P1)[user_key[0] % 2] + user_key


def _letter(rng: random.Random) -> bytes:
    return rng.choice("abcdefghijklmnop").encode()


def _random_store(rng: random.Random) -> Committed:
    store = Committed()
    for letter in "abcdefghijklmnop":
        if rng.random() < 0.5:
            store.versions[_full(letter.encode())] = b"v1"
    return store


@pytest.mark.parametrize("seed", range(20))
def test_a_conflict_is_found_exactly_when_reading_again_would_see_something_else(
    seed: int,
) -> None:
    rng = random.Random(seed)
    conflicts = 0
    for _ in range(60):
        store, script, reads = _random_store(rng), Script(rng), ReadSet()
        before = script.run(store, reads)
        assert store.conflict(reads) is None
        changed = _change(rng, store)
        conflict = store.conflict(reads)
        again = script.run(store, ReadSet())
        # A limit that was not reached says nothing about what comes later: reading again may see
        # more than the read set covers, never less.
        if conflict is None:
            for old, new in zip(before, again, strict=True):
                assert old == new or (isinstance(old, list) and _starts_with(new, old))
        else:
            conflicts += 1
            assert before != again
            assert conflict in changed
        assert first_overwritten(reads, changed) is None or conflict is not None
        assert (first_changed(reads, store.get, store.range) is None) == (conflict is None)
    assert conflicts > 5


def _starts_with(new: object, old: Seen) -> bool:
    return isinstance(new, list) and new[: len(old)] == old


def _change(rng: random.Random, store: Committed) -> set[bytes]:
    keys = {_full(_letter(rng)) for _ in range(rng.randint(1, 3))}
    for key in keys:
        if key in store.versions and rng.random() < 0.5:
            del store.versions[key]
        else:
            store.versions[key] = store.versions.get(key, b"v") + b"+"
    return keys
