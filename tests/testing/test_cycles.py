"""The checker of histories: bad ones by hand with their names, good ones, and every serial order.

A history is written as one line per transaction, ``name start..end status: steps``, where the
steps are ``r key value``, ``w key value``, ``d key value`` (a delete, under the name of a value)
and ``s start stop key=value ...``; ``-`` is None or no end, and an end of ``?`` is an answer that
never came.  ``log key: values`` gives the order of the values of a key.
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tidelog.testing.cycles import assert_strictly_serializable, check_transactions
from tidelog.testing.transactions import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Transaction,
    TransactionHistory,
    TransactionRecorder,
    TxKey,
    TxValue,
)


def history(text: str) -> TransactionHistory:
    transactions: list[Transaction] = []
    versions: dict[TxKey, list[TxValue]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        head, steps = line.split(":")
        name, *rest = head.split()
        if name == "log":
            versions[rest[0]] = list(steps.split())
        else:
            transactions.append(_transaction(name, rest, steps))
    return TransactionHistory(transactions=transactions, versions=versions)


def _transaction(name: str, rest: list[str], steps: str) -> Transaction:
    start, end = rest[0].split("..")
    recorder = TransactionRecorder(name, float(start))
    for step in filter(None, map(str.strip, steps.split(","))):
        _record(recorder, *step.split())
    if end == "?":
        return recorder.finish(UNKNOWN, 0.0)
    return recorder.finish(rest[1] if len(rest) > 1 else COMMITTED, float(end))


def _record(recorder: TransactionRecorder, action: str, *words: str) -> None:
    values: list[TxValue] = [None if word == "-" else word for word in words]
    match action:
        case "r":
            recorder.read(words[0], values[1])
        case "w":
            recorder.write(words[0], values[1])
        case "d":
            recorder.delete(words[0], values[1])
        case _:
            found: dict[TxKey, TxValue] = {w.split("=")[0]: w.split("=")[1] for w in words[2:]}
            recorder.scan(words[0], None if words[1] == "-" else words[1], found)


# ------------------------------------------------------------------ bad histories

BAD: dict[str, tuple[str, str]] = {
    # Impossible by themselves: what was read, and what the log holds.
    "a value that nobody wrote": (
        "garbage read",
        """
        T1 0..9: r x ghost
        """,
    ),
    "a value of another key": (
        "garbage read",
        """
        T1 0..1: w x a
        T2 2..3: r y a
        log x: a
        """,
    ),
    "a scan returns a value that nobody wrote": (
        "garbage read",
        """
        T1 0..9: s a z m=ghost
        """,
    ),
    "a value of a transaction that was rolled back": (
        "G1a",
        """
        T1 0..9 aborted: w x a
        T2 0..9: r x a
        """,
    ),
    "a value of a transaction that is not in the log and never answered": (
        "G1a",
        """
        T1 0..?: w x a
        T2 0..9: r x a
        """,
    ),
    "a scan returns a key that was rolled back": (
        "G1a",
        """
        T1 0..9 aborted: w m a
        T2 0..9: s a z m=a
        """,
    ),
    "a value that its own transaction replaced": (
        "G1b",
        """
        T1 0..9: w x a, w x b
        T2 0..9: r x a
        log x: b
        """,
    ),
    "a value that its own transaction deleted": (
        "G1b",
        """
        T1 0..9: w x a, d x gone
        T2 0..9: r x a
        log x: gone
        """,
    ),
    "a write that was acknowledged and is not in the log": (
        "lost write",
        """
        T1 0..1: w x a
        """,
    ),
    "half of a transaction that was acknowledged": (
        "lost write",
        """
        T1 0..1: w x a, w y b
        log x: a
        """,
    ),
    "half of a transaction that never answered": (
        "torn transaction",
        """
        T1 0..?: w x a, w y b
        log y: b
        """,
    ),
    "a write of a transaction that was rolled back": (
        "aborted write",
        """
        T1 0..1 aborted: w x a
        log x: a
        """,
    ),
    "an entry that nobody wrote": (
        "garbage write",
        """
        T1 0..1: r x -
        log x: ghost
        """,
    ),
    "an entry that its own transaction replaced": (
        "intermediate write",
        """
        T1 0..1: w x a, w x b
        log x: a b
        """,
    ),
    "one write applied twice": (
        "misplaced write",
        """
        T1 0..1: w x a
        log x: a a
        """,
    ),
    "a write under another key": (
        "misplaced write",
        """
        T1 0..1: w x a
        log x: a
        log y: a
        """,
    ),
    "an own write that is not seen": (
        "internal",
        """
        T1 0..1: w x a, r x -
        log x: a
        """,
    ),
    "an own delete that is not seen": (
        "internal",
        """
        T1 0..1: w x a
        T2 2..3: r x a, d x gone, r x a
        log x: a gone
        """,
    ),
    "an own write that a scan leaves out": (
        "internal",
        """
        T1 0..1: w m a, s a z
        log m: a
        """,
    ),
    "an own delete that a scan still shows": (
        "internal",
        """
        T1 0..1: w m a
        T2 2..3: d m gone, s a z m=a
        log m: a gone
        """,
    ),
    "a key read twice with two values": (
        "internal",
        """
        T1 0..1: w x a
        T2 0..9: r x -, r x a
        log x: a
        """,
    ),
    "a key read, then scanned with another value": (
        "internal",
        """
        T1 0..1: w m a
        T2 0..9: r m -, s a z m=a
        log m: a
        """,
    ),
    "two scans of one range with two results": (
        "internal",
        """
        T1 0..1: w m a
        T2 0..9: s a z, s a n m=a
        log m: a
        """,
    ),
    "a value read before it is written": (
        "internal",
        """
        T1 0..1: r x a, w x a
        log x: a
        """,
    ),
    # Cycles of writes, and of writes and what was read of them.
    "two transactions write two keys in two orders": (
        "G0",
        """
        T1 0..9: w x a, w y b
        T2 0..9: w x c, w y d
        log x: a c
        log y: d b
        """,
    ),
    "three transactions write in a circle": (
        "G0",
        """
        T1 0..9: w x a, w y b
        T2 0..9: w y c, w z d
        T3 0..9: w z e, w x f
        log x: f a
        log y: b c
        log z: d e
        """,
    ),
    "two transactions read each other's writes": (
        "G1c",
        """
        T1 0..9: w x a, r y b
        T2 0..9: w y b, r x a
        log x: a
        log y: b
        """,
    ),
    "reads what a later writer of another key wrote": (
        "G1c",
        """
        T1 0..9: w x a, r y d
        T2 0..9: w x c, w y d
        log x: a c
        log y: d
        """,
    ),
    "reads a version newer than its own": (
        "G1c",
        """
        T1 0..9: r x b, w x a
        T2 0..9: w x b
        log x: a b
        """,
    ),
    "a circle of three reads": (
        "G1c",
        """
        T1 0..9: w x a, r z c
        T2 0..9: w y b, r x a
        T3 0..9: w z c, r y b
        log x: a
        log y: b
        log z: c
        """,
    ),
    # Lost updates.
    "two increments from the same value": (
        "lost update",
        """
        T1 0..1: w x a
        T2 2..9: r x a, w x b
        T3 2..9: r x a, w x c
        log x: a b c
        """,
    ),
    "two creations of a key found absent": (
        "lost update",
        """
        T1 0..9: r x -, w x a
        T2 0..9: r x -, w x b
        log x: a b
        """,
    ),
    "an update over a blind write that it did not see": (
        "lost update",
        """
        T1 0..9: w x a
        T2 0..9: r x -, w x b
        log x: a b
        """,
    ),
    "a delete over an update that it did not see": (
        "lost update",
        """
        T1 0..1: w x a
        T2 2..9: r x a, w x b
        T3 2..9: r x a, d x gone
        log x: a b gone
        """,
    ),
    "a scan and an update over an unseen one": (
        "lost update",
        """
        T1 0..9: s a z, w m a
        T2 0..9: s a z, w m b
        log m: a b
        """,
    ),
    # One read too old: read skew.
    "half of another transaction is seen": (
        "G-single",
        """
        T1 0..9: w x a, w y b
        T2 0..9: r x a, r y -
        log x: a
        log y: b
        """,
    ),
    "half of another transaction is seen, the other half as deleted": (
        "G-single",
        """
        T0 0..1: w x a, w y b
        T1 2..9: w x c, d y gone
        T2 2..9: r x a, r y gone
        log x: a c
        log y: b gone
        """,
    ),
    "a scan sees one of two keys that were inserted together": (
        "G-single",
        """
        T1 0..9: w k a, w m b
        T2 0..9: s a z m=b
        log k: a
        log m: b
        """,
    ),
    "a total does not fit what was scanned": (
        "G-single",
        """
        T1 0..9: w m a, w total one
        T2 0..9: s a n, r total one
        log m: a
        log total: one
        """,
    ),
    "a read is older than one that its source had seen": (
        "G-single",
        """
        T1 0..9: w x a
        T2 0..9: r x a, w y b
        T3 0..9: r y b, r x -
        log x: a
        log y: b
        """,
    ),
    # Two reads too old: write skew.
    "write skew on two keys": (
        "G2",
        """
        T1 0..9: r x -, w y a
        T2 0..9: r y -, w x b
        log x: b
        log y: a
        """,
    ),
    "write skew in a circle of three": (
        "G2",
        """
        T1 0..9: r x -, w y a
        T2 0..9: r y -, w z b
        T3 0..9: r z -, w x c
        log x: c
        log y: a
        log z: b
        """,
    ),
    "phantoms: two scans that miss each other's insert": (
        "G2",
        """
        T1 0..9: s a z, w k a
        T2 0..9: s a z, w m b
        log k: a
        log m: b
        """,
    ),
    "phantoms: a scan without end, and one key": (
        "G2",
        """
        T1 0..9: s m -, w a x1
        T2 0..9: r a -, w zz x2
        log a: x1
        log zz: x2
        """,
    ),
    "two readers see two inserts in two orders": (
        "G2",
        """
        T1 0..9: w x a
        T2 0..9: w y b
        T3 0..9: r x a, r y -
        T4 0..9: r y b, r x -
        log x: a
        log y: b
        """,
    ),
    "the read-only anomaly of snapshot isolation": (
        "G2",
        """
        T1 0..9: r x -, r y -, w x a
        T2 0..9: w y b
        T3 0..9: r x -, r y b
        log x: a
        log y: b
        """,
    ),
    # Serializable, but not in the order in which the clients saw it.
    "a value is read that was replaced before the read began": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: w x b
        T3 4..5: r x a
        log x: a b
        """,
    ),
    "an acknowledged write is not seen": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: r x -
        log x: a
        """,
    ),
    "an acknowledged insert is not scanned": (
        "real-time violation",
        """
        T1 0..1: w m a
        T2 2..3: s a z
        log m: a
        """,
    ),
    "two writes stand in the log in the wrong order": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: w x b
        log x: b a
        """,
    ),
    "a value is seen, and later it is not": (
        "real-time violation",
        """
        T1 0..?: w x a
        T2 1..2: r x a
        T3 3..4: r x -
        log x: a
        """,
    ),
    "a deleted value comes back": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: d x gone
        T3 4..5: r x a
        log x: a gone
        """,
    ),
    "a key is absent after it was written anew": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: d x gone
        T3 4..5: w x b
        T4 6..7: r x -
        log x: a gone b
        """,
    ),
    "a key is absent between its writing and its deletion": (
        "real-time violation",
        """
        T1 0..1: w x a
        T2 2..3: r x -
        T3 4..5: d x gone
        log x: a gone
        """,
    ),
    "a write skew whose one half the clock tells": (
        "real-time violation",
        """
        T1 0..1: w y a
        T2 2..3: r y -, w x b
        T3 4..5: r x b
        log x: b
        log y: a
        """,
    ),
}


@pytest.mark.parametrize(
    ("name", "text"), [pytest.param(*row, id=title) for title, row in BAD.items()]
)
def test_a_bad_history_is_rejected_by_its_name(name: str, text: str) -> None:
    anomalies = check_transactions(history(text))
    assert {anomaly.name for anomaly in anomalies} == {name}
    with pytest.raises(AssertionError, match=name):
        assert_strictly_serializable(history(text))


def test_there_are_at_least_thirty_bad_histories_and_every_name_is_among_them() -> None:
    assert len(BAD) >= 30
    assert {name for name, _ in BAD.values()} >= {
        "G0", "G1a", "G1b", "G1c", "G-single", "G2", "lost update", "garbage read",
        "real-time violation", "lost write", "torn transaction", "internal",
    }  # fmt: skip


# ------------------------------------------------------------------ good histories

GOOD: dict[str, str] = {
    "nothing": "",
    "one transaction": "T1 0..1: r x -, w x a\nlog x: a",
    "one after the other": """
        T1 0..1: w x a
        T2 2..3: r x a, w x b
        T3 4..5: r x b
        log x: a b
        """,
    "concurrent ones may be seen in either order": """
        T1 0..9: w x a
        T2 1..8: r x -
        T3 1..8: r x a
        log x: a
        """,
    "an end and a start at the same moment are concurrent": """
        T1 0..2: w x a
        T2 2..3: r x -
        log x: a
        """,
    "a transaction that never answered may have happened": """
        T1 0..?: w x a
        T2 5..6: r x -
        T3 7..8: r x a
        log x: a
        """,
    "a transaction that never answered may not have happened": """
        T1 0..?: w x a
        T2 5..6: r x -
        """,
    "what was rolled back counts for nothing": """
        T1 0..1 aborted: r x ghost, w x a
        T2 2..3: r x -
        """,
    "own writes are read and scanned": """
        T1 0..1: w k a, r k a, w k b, r k b, s a z k=b, d k gone, r k -, s a z
        log k: gone
        """,
    "a scan and a later own insert": """
        T1 0..1: s a z, w k a, s a z k=a
        T2 2..3: s a z k=a, s a k, s l -
        log k: a
        """,
    "a deletion is seen as absence": """
        T1 0..1: w x a
        T2 2..3: r x a, d x gone
        T3 4..5: r x -, w x b
        T4 6..7: r x b
        log x: a gone b
        """,
    "a deletion is seen by its version": """
        T1 0..1: w x a
        T2 2..3: d x gone
        T3 4..5: r x gone
        log x: a gone
        """,
    "an absence that may be the first or a later one": """
        T1 0..9: w x a
        T2 0..9: r x a, d x gone
        T3 0..9: r x -
        log x: a gone
        """,
    "two increments that saw each other": """
        T1 0..9: r x -, w x a
        T2 0..9: r x a, w x b
        log x: a b
        """,
    "blind writes in the order of the log": """
        T1 0..9: w x a, w y b
        T2 0..9: w x c, w y d
        log x: a c
        log y: b d
        """,
    "disjoint scans and inserts": """
        T1 0..9: s a m, w z a
        T2 0..9: s n y, w b b
        log z: a
        log b: b
        """,
}


@pytest.mark.parametrize("text", [pytest.param(text, id=title) for title, text in GOOD.items()])
def test_a_good_history_is_accepted(text: str) -> None:
    assert check_transactions(history(text)) == []
    assert_strictly_serializable(history(text))


# ------------------------------------------------------------------ what is said


def test_an_anomaly_names_its_transactions_and_shows_the_cycle() -> None:
    text = BAD["an acknowledged write is not seen"][1]
    (anomaly,) = check_transactions(history(text))
    assert anomaly.transactions == ("T1", "T2")
    assert anomaly.text == "T1 -rt-> T2 -rw 'x'-> T1"


def test_a_single_old_read_is_shown_with_what_contradicts_it() -> None:
    (anomaly,) = check_transactions(history(BAD["half of another transaction is seen"][1]))
    assert anomaly.transactions == ("T1", "T2")
    assert anomaly.text == "T2 -rw 'y'-> T1 -wr 'x'-> T2"


def test_every_knot_of_transactions_is_reported_once() -> None:
    skew = """
        T1{0} 0..9: r x{0} -, w y{0} a{0}
        T2{0} 0..9: r y{0} -, w x{0} b{0}
        log x{0}: b{0}
        log y{0}: a{0}
        """
    anomalies = check_transactions(history(skew.format(1) + skew.format(2)))
    assert [anomaly.transactions for anomaly in anomalies] == [("T11", "T21"), ("T12", "T22")]


@pytest.mark.slow
def test_a_long_history_is_checked_without_recursion() -> None:
    count = 1_500
    lines = [f"T{n} {2 * n}..{2 * n + 1}: r x v{n}, w x v{n + 1}" for n in range(1, count)]
    log = " ".join(f"v{n}" for n in range(1, count + 1))
    good = "\n".join(["T0 0..1: w x v1", *lines, f"log x: {log}"])
    assert check_transactions(history(good)) == []
    bad = good + f"\nlate {3 * count}..{3 * count + 1}: r x v7"
    (anomaly,) = check_transactions(history(bad))
    assert anomaly.name == "real-time violation"


# ------------------------------------------------------------------ against all serial orders


def serial_order_exists(given: TransactionHistory) -> bool:
    """Try every order of the transactions: reads, the log and real time must all agree with it."""
    committed = [t for t in given.transactions if t.status != ABORTED]
    return any(_replays(given, order) for order in permutations(committed))


def _replays(given: TransactionHistory, order: tuple[Transaction, ...]) -> bool:
    state: dict[TxKey, TxValue] = {}
    written: dict[TxKey, list[TxValue]] = {}
    for place, transaction in enumerate(order):
        if any(later.end < transaction.start for later in order[place:]):
            return False
        if any(_visible(given, state, key) != value for key, value in transaction.reads.items()):
            return False
        for scan in transaction.scans:
            visible = {k: v for k in state if k in scan and (v := _visible(given, state, k))}
            if visible != scan.found:
                return False
        for key, value in transaction.writes.items():
            state[key] = value
            written.setdefault(key, []).append(value)
    return written == given.versions


def _visible(given: TransactionHistory, state: dict[TxKey, TxValue], key: TxKey) -> TxValue:
    value = state.get(key)
    deleted = any(key in t.deletes and t.writes[key] == value for t in given.transactions)
    return None if deleted else value


def random_history(rng: random.Random, *, deletes: bool) -> TransactionHistory:
    """Run a few transactions at random, mostly one by one, with some reads and orders falsified."""
    state: dict[TxKey, TxValue] = {}
    versions: dict[TxKey, list[TxValue]] = {}
    transactions = []
    old: dict[TxKey, list[TxValue]] = {key: [None] for key in "xyz"}
    for number in range(rng.randint(2, 5)):
        start = number + rng.choice((0.0, -1.0, -2.0))
        recorder = TransactionRecorder(f"T{number}", start)
        for key in rng.sample("xyz", rng.randint(0, 2)):
            recorder.read(key, rng.choice(old[key]) if rng.random() < 0.15 else state.get(key))
        if rng.random() < 0.3:
            recorder.scan("y", None, {k: v for k, v in state.items() if k != "x" and v})
        for key in rng.sample("xyz", rng.randint(0, 2)):
            value = f"{key}{number}"
            versions.setdefault(key, []).append(value)
            if deletes and rng.random() < 0.3:
                recorder.delete(key, value)
                state[key] = None
            else:
                recorder.write(key, value)
                state[key] = value
            old[key].append(state[key])
        transactions.append(recorder.finish(COMMITTED, max(start, number + rng.choice((0.5, 1.5)))))
    for values in versions.values():
        if rng.random() < 0.1:
            rng.shuffle(values)
    return TransactionHistory(transactions=transactions, versions=versions)


@pytest.mark.parametrize("seed", range(10))
def test_a_history_is_rejected_exactly_when_no_serial_order_explains_it(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(300):
        given = random_history(rng, deletes=False)
        anomalies = check_transactions(given)
        assert (anomalies == []) == serial_order_exists(given), (given, anomalies)
        verdicts.add(anomalies == [])
    assert verdicts == {True, False}


@pytest.mark.parametrize("seed", range(10))
def test_with_deletions_no_history_is_rejected_that_a_serial_order_explains(seed: int) -> None:
    rng = random.Random(seed)
    agreed = 0
    for _ in range(300):
        given = random_history(rng, deletes=True)
        anomalies, explained = check_transactions(given), serial_order_exists(given)
        assert not (anomalies and explained), (given, anomalies)
        agreed += (anomalies == []) == explained
    assert agreed > 285
