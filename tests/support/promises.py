"""What a store must keep after a power cut: the invariants, each raised under its name.

The checker reopens a disk that a ``Run`` left, and compares what it finds with every world that
the run's promises allow: all that was acknowledged as durable, and of the rest the first so many
transactions of the log, each of them whole.

Names: I-1 durable commits are there, I-2 all or nothing, I-3 the data file is not ahead of the log,
I-4 recovery is idempotent, I-5 no value that nobody wrote, I-6 damage is refused and a torn tail is
not, I-7 no writing after a failed sync, I-8 counters are sane, I-9 LWM never falls, I-10 no holes
below LWM, I-11 no number twice.  ``errors``: only Tidelog's own, ``readers``: no forgotten ones,
``check``: the store's own check agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidelog.affinity.errors import CorruptLogError, TidelogError
from tidelog.checkpoints.marks import epoch_of
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data.namespaces import OUTCOMES
from tidelog.engine.data.overlay import merged
from tidelog.engine.data.partition_store import STORE_KEY, read_marks, verify_partitions
from tidelog.engine.data.stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    checked,
    is_tombstone,
    pack_prefix,
    split_key,
    version_of,
)
from tidelog.engine.files import manifest as manifests
from tidelog.testing import FaultyDisk, check_database, simulated
from tidelog.testing.environment import SimulatedEnvironment
from tidelog.testing.kv import MemoryKv, MemoryTransaction
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import NumberedRecord, StateRecord
from tidelog.wal.segments import open_segment, segment_numbers

from .scripts import (
    LIMITS,
    NEVER,
    PARTITIONS,
    PATH,
    SMALL_PIECES,
    BrokenInvariant,
    Given,
    Run,
    World,
    broken,
    check_readers,
)

_MARKS = bytes(4)


@dataclass
class Promise:
    """What a run promised: worlds from ``lowest`` to ``highest`` are allowed.

    ``given`` says which entry each update number belongs to, ``lwms`` what was reported.
    """

    worlds: list[World]
    lowest: int
    highest: int
    given: list[tuple[Given, int]] = field(default_factory=list)
    lwms: list[int] = field(default_factory=list)
    unnumbered: set[bytes] = field(default_factory=set)
    """Values of a commit that was cut off before the script could see its numbers."""


def promise_of(run: Run, *, kept: bool = False) -> Promise:
    """Return what a run that was cut off promised; ``kept``: nothing that was written was lost."""
    acknowledged = [e for e in run.entries if e.state in ("relaxed", "durable")]
    worlds = run.worlds[: len(acknowledged) + 1]
    lowest = len(acknowledged) if kept else run.floor
    # At most one: nothing is acknowledged after it, before the store is opened again.
    open_ended = [e for e in run.entries if e.state in ("tried", "unknown")]
    worlds += [worlds[-1].after(e.step) for e in open_ended]
    taking = acknowledged + open_ended
    given = [(g, place) for place, e in enumerate(taking, 1) for g in e.given]
    lwms = [e.lwms for e in acknowledged[:lowest]]
    return Promise(
        worlds=worlds,
        lowest=lowest,
        highest=len(worlds) - 1,
        given=given,
        lwms=lwms[-1] if lwms else [0] * PARTITIONS,
        unnumbered={
            value or b"" for e in open_ended if not e.given for _, _, value in e.step.changes
        },
    )


# ------------------------------------------------------------------ looking


def shown(db: Database) -> World:
    """Return what users see in an open store."""
    maps = {name: dict(db.map(name).items()) for name in db.maps()}
    prefixes = [pack_prefix(partition, OUTCOMES) for partition in range(session_of(db).partitions)]
    ids = frozenset(key[PREFIX_SIZE:] for key in stored_pairs(db) if key[:PREFIX_SIZE] in prefixes)
    return World(maps, ids)


def stored_pairs(db: Database) -> dict[bytes, bytes]:
    """Return full keys and stored values by the slow way: the data file under all layers."""
    view = session_of(db).overlay.view
    found: Iterable[tuple[bytes, bytes]] = ()
    if isinstance(view.txn, MemoryTransaction):
        found = view.txn.tree.items()
    else:
        cursor = view.txn.cursor()
        if cursor.first():
            found = cursor.iternext()
    pairs = {key: value for key, value in found if key != STORE_KEY and key[4:8] != _MARKS}
    for updates in merged(reversed(view.layers)).values():
        pairs.update(zip(updates, checked(updates, updates.values()), strict=True))
    alive = {OUTCOMES, *session_of(db).store.state.namespaces}
    return {
        key: value
        for key, value in pairs.items()
        if not is_tombstone(value) and split_key(key)[1] in alive
    }


def opened(disk: FaultyDisk, seed: int, kv: str) -> tuple[SimulatedEnvironment, Database]:
    """Open a store that must not be refused."""
    environment = simulated(seed, disk, kv=kv, limits=SMALL_PIECES)
    try:
        db = opens.open_with(environment, PATH, partitions=PARTITIONS, **LIMITS)
    except CorruptLogError as error:
        broken("I-6", f"a torn tail was taken for damage: {error}")
    except TidelogError as error:
        broken("I-1", f"the store does not open: {error!r}")
    except (OSError, AssertionError, KeyError, IndexError, ValueError, RuntimeError) as error:
        raise BrokenInvariant("errors", f"opening raised {error!r}") from error
    return environment, db


# ------------------------------------------------------------------ checks


def check_wal_rule(disk: FaultyDisk) -> None:
    """I-3: what the data file holds is in the log that survived."""
    directory = disk.directory(PATH) if disk.kind(PATH) else None
    if directory is None or disk.kind(f"{PATH}/manifest") is None:
        return
    if not disk.node(f"{PATH}/data/data.mdb"):
        return
    manifest = manifests.read(directory)
    try:
        kv = MemoryKv(disk, f"{PATH}/data", 1 << 30, True, False)
    except TidelogError:
        return
    store, marks = read_marks(kv.begin())
    kv.close()
    positions = [mark.position for mark in marks.values()]
    positions += [store.position] if store is not None else []
    if positions:
        ids = [(bytes.fromhex(log_id), first) for log_id, first in manifest.logs]
        scan = Scan(disk.directory(f"{PATH}/wal"), log_ids=ids)
        for _ in scan:
            pass
        if max(positions) > scan.end.position:
            broken("I-3", f"data up to {max(positions)}, the log ends at {scan.end.position}")


def find_world(found: World, promise: Promise) -> int:
    """I-1, I-2, I-5: return which of the worlds this is."""
    for place in range(promise.highest, promise.lowest - 1, -1):
        if promise.worlds[place] == found:
            return place
    for place in range(promise.lowest):
        if promise.worlds[place] == found:
            broken("I-1", f"{promise.lowest} commits are durable, {place} were found")
    known = {
        (key, value)
        for world in promise.worlds
        for content in world.maps.values()
        for key, value in content.items()
    }
    for name, content in found.maps.items():
        for key, value in content.items():
            if (key, value) not in known:
                broken("I-5", f"{name} {key!r} holds {value[:20]!r}..., which nobody wrote")
    broken("I-2", "no whole set of transactions: " + _difference(found, promise))


def _difference(found: World, promise: Promise) -> str:
    best = min(
        (len(_differing(found, promise.worlds[p])), p)
        for p in range(promise.lowest, promise.highest + 1)
    )
    differing = _differing(found, promise.worlds[best[1]])
    return f"after {best[1]} commits these would differ: {sorted(differing)[:6]}"


def _differing(one: World, other: World) -> set[str]:
    differing = {f"map {name}" for name in one.maps.keys() ^ other.maps.keys()}
    differing |= {f"id {tx_id!r}" for tx_id in one.ids ^ other.ids}
    for name in one.maps.keys() & other.maps.keys():
        mine, theirs = one.maps[name], other.maps[name]
        differing |= {
            f"{name} {key!r}"
            for key in mine.keys() | theirs.keys()
            if mine.get(key) != theirs.get(key)
        }
    return differing


def check_counters(db: Database, promise: Promise) -> None:
    """I-8, I-9, and I-11 for what is stored."""
    state = session_of(db).store.state
    for partition, counter in enumerate(state.counters):
        if not 0 <= counter.lwm <= counter.highest_applied <= counter.hwm:
            broken("I-8", f"partition {partition}: {counter!r}")
        edge = counter.lwm
        for start, delta in counter.out_of_order:
            if start <= edge or delta < 1 or start + delta > counter.hwm:
                broken("I-8", f"partition {partition}: {counter!r}")
            edge = start + delta
        if counter.lwm < promise.lwms[partition]:
            text = f"partition {partition}: {counter.lwm}, was {promise.lwms[partition]}"
            broken("I-9", text)


def check_given(pairs: dict[bytes, bytes], promise: Promise, place: int) -> None:
    """I-11: each stored value has a number that its commit was given."""
    owners = [given for given, entry in promise.given if entry <= place]
    for full_key, value in pairs.items():
        partition, _, _ = split_key(full_key)
        epoch, number, _ = version_of(value)
        known = any(p == partition and e == epoch and a <= number <= b for p, e, a, b in owners)
        if not known and value[:-TRAILER_SIZE] not in promise.unnumbered:
            broken("I-11", f"{full_key.hex()} has number {number} of epoch {epoch}, never given")


def check_log(db: Database) -> None:
    """I-10, I-11: each number up to LWM that the kept log covers has one record."""
    store = session_of(db).store
    directory = store.environment.disk.directory(f"{PATH}/wal")
    state = store.state
    seen: list[dict[int, int]] = [{} for _ in range(state.partitions)]
    owners: set[tuple[int, int, int]] = set()
    base: list[int] | None = None
    ids = [(bytes.fromhex(log_id), first) for log_id, first in store.manifest.logs]
    first = open_segment(directory, segment_numbers(directory)[0]).first_position
    for _, record in read_records(Scan(directory, first, log_ids=ids)):
        if isinstance(record, StateRecord) and base is None:
            base = list(record.lwms)
        if not isinstance(record, NumberedRecord):
            continue
        for run in record.runs:
            for number in range(run.first, run.first + run.count):
                if (run.partition, run.epoch, number) in owners:
                    broken("I-11", f"partition {run.partition}: {number} of {run.epoch} twice")
                owners.add((run.partition, run.epoch, number))
                if epoch_of(state.epoch_tables[run.partition], number) == run.epoch:
                    seen[run.partition][number] = run.epoch
    assert base is not None, "the log begins without a STATE record"
    for partition, counter in enumerate(state.counters):
        missing = [
            n for n in range(base[partition] + 1, counter.lwm + 1) if n not in seen[partition]
        ]
        if missing:
            broken("I-10", f"partition {partition}: no record of {missing[:5]}, LWM {counter.lwm}")


def check_store_files(db: Database) -> None:
    """The partitions of the data file are what their marks say."""
    problems = verify_partitions(session_of(db).store.kv, session_of(db).store.checkpointer.marks)
    if problems:
        broken("I-2", f"the data file contradicts its marks: {problems[0]}")


def check_new_numbers(db: Database, promise: Promise) -> list[tuple[int, int]]:
    """Commit something in every partition; I-11: its numbers were never given before."""
    state = session_of(db).store.state
    before = [(e, c.hwm) for e, c in zip(state.epochs, state.counters, strict=True)]
    probe = db.map("probe")
    with db.transaction() as tx:
        for number in range(24):
            tx[probe][b"%d" % number] = b"probe"
    with db.transaction(durability="none") as tx:
        tx[probe][b"last"] = b"probe"
    for partition, counter in enumerate(state.counters):
        epoch, hwm = state.epochs[partition], counter.hwm
        first = before[partition][1] + 1
        for (p, e, a, b), entry in promise.given:
            if p == partition and e == epoch and a <= hwm and first <= b:
                broken("I-11", f"partition {p}, epoch {e}: {first}..{hwm} given again ({entry})")
    return before


@contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Turn whatever a recovered store raises into a broken invariant."""
    try:
        yield
    except BrokenInvariant:
        raise
    except TidelogError as error:
        raise BrokenInvariant("I-1", f"{what}: {error!r}") from error
    except (OSError, KeyError, IndexError, ValueError, RuntimeError, AssertionError) as error:
        raise BrokenInvariant("errors", f"{what} raised {error!r}") from error


def check_recovered(disk: FaultyDisk, promise: Promise, *, kv: str = "memory") -> int:
    """Check all invariants of a store on a disk as a power cut left it; return which world it is.

    Opens it three times: after the power cut, after another one right behind the recovery, and
    after a clean close.
    """
    if kv == "memory":
        check_wal_rule(disk)
    with naming_errors("after recovery"):
        _, db = opened(disk, 2, kv)
        world = shown(db)
        place = find_world(world, promise)
        pairs = stored_pairs(db)
        check_counters(db, promise)
        check_given(pairs, promise, place)
        check_readers(db)
        lwms = [counter.lwm for counter in session_of(db).store.state.counters]
        session_of(db).abandon()
        again = disk.crash("lost")
    with naming_errors("after a second recovery"):
        _, db = opened(again, 3, kv)
        if stored_pairs(db) != pairs or db.maps() != sorted(world.maps):
            broken("I-4", "a second recovery found something else")
        if [counter.lwm for counter in session_of(db).store.state.counters] != lwms:
            broken("I-4", "a second recovery found other counters")
        check_outcomes(db, place, promise)
        check_new_numbers(db, promise)
        check_log(db)
        pairs = stored_pairs(db)
        db.close()
    with naming_errors("after a clean close"):
        _, db = opened(again, 4, kv)
        if not session_of(db).store.report.clean:
            broken("I-4", "a clean close was not believed")
        if stored_pairs(db) != pairs:
            broken("I-1", "a clean close lost something")
        check_store_files(db)
        problems = check_database(db)
        if problems:
            broken("check", f"the store's own check found: {problems[0]}")
        session_of(db).abandon()
    return place


def check_outcomes(db: Database, place: int, promise: Promise) -> None:
    """The outcome of a given id is that of its transaction; one that never was is not found."""
    for tx_id in promise.worlds[-1].ids:
        found = db.outcome(tx_id)
        if (found == "committed") != (tx_id in promise.worlds[place].ids):
            broken("I-2", f"{tx_id!r} is said to be {found}")
    if "committed" in (db.outcome(bytes(16)), db.outcome(NEVER)):
        broken("I-5", "a transaction that never was is said to be committed")
