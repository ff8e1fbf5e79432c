"""Stores with long mixed histories, and what every view of them has to show, in plain dicts.

A history is made of random steps on a store of the real engine: transactions, maps that are
dropped, renamed and made again, loads, large values, segments, checkpoints, trimming, copies and
archives.  The model knows the data behind each commit and what became of maps in between.  Between
steps views are read in random ways and compared with it.  Whoever reads a change later, by another
way or again, has to get the very row that was seen first.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tidelog.affinity.errors import HistoryTruncatedError, SnapshotExpiredError
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.pipeline.data import archives
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.log.logs import Log
from tidelog.pipeline.plan.options import ReadOptions, parse
from tidelog.pipeline.plan.streams import ChangeStream

from .loads import make_load
from .pipelines import Row, new_store, rows, rows_of

Data = dict[int, dict[bytes, bytes]]
Place = tuple[int, int]
"""Partition and number."""

NAMES = ["a", "b", "c", "d"]
GONE = (HistoryTruncatedError, SnapshotExpiredError)


@dataclass
class Commit:
    """What a transaction wrote, by map and key, and what maps were called then."""

    updates: dict[tuple[int, bytes], bytes | None]
    names: dict[int, str]


@dataclass
class Moment:
    """The store behind a commit: numbers, data, names, and what had become of maps by then."""

    numbers: dict[int, int]
    data: Data
    names: dict[int, str]
    time: int
    catalog: int

    def maps(self) -> dict[tuple[str, int], dict[bytes, bytes]]:
        return {(self.names[n], n): pairs for n, pairs in self.data.items() if pairs}


@dataclass
class Followed:
    """A stream, the offsets that it has come past, and what it showed between them."""

    options: ReadOptions
    stream: ChangeStream
    offsets: list[dict[str, Any]]
    batches: list[list[Row]] = field(default_factory=list)


class MixedHistory:
    """A store, its model, and what was made of it so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.path = folder / "store"
        self.options: dict[str, Any] = {
            "partitions": rng.choice((1, 2, 3, 5)),
            "segment_bytes": rng.choice((1 << 16, 1 << 17, 64 << 20)),
            "checkpoint_bytes": rng.choice((1 << 17, 1 << 28)),
            "retain_bytes": 1 << 30,
            "durability": rng.choice(("none", "none", "interval", "always")),
        }
        self.data: Data = {}
        self.names: dict[int, str] = {}
        self.commits: list[Commit] = []
        self.owner: dict[Place, Commit] = {}
        self.moments: list[Moment] = []
        self.catalog: list[tuple[str, int, str, bytes | None]] = []
        """What became of maps: drop or rename, id, name, new name."""
        self.seen: dict[Place, Row] = {}
        self.trimmed = self.loaded = False
        self.copies: list[tuple[Path, Moment]] = []
        self.archives: list[Path] = []
        self.streams: list[Followed] = []
        self.made = 0
        self.counts: Counter[str] = Counter()
        self.db = self.opened()
        self.commit([("a", b"first", b"1")])

    def opened(self, **more: Any) -> Database:
        return new_store(self.path, **{**self.options, **more})

    def fresh(self, kind: str) -> Path:
        self.made += 1
        return self.folder / f"{kind}{self.made}"

    # -------------------------------------------------------------- steps

    def run(self, steps: int) -> Counter[str]:
        """Take steps, look in between, and at everything at the end."""
        kinds = {
            self.write: 30, self.clear: 2, self.undone: 2, self.drop: 4, self.rename: 4,
            self.rotate: 3, self.db_checkpoint: 2, self.reopen: 2, self.trim: 1, self.backup: 2,
            self.carry: 3, self.attach: 1, self.follow: 3, self.move_on: 10, self.look: 6,
        }  # fmt: skip
        chosen = self.rng.choices(list(kinds), list(kinds.values()), k=steps)
        for step in chosen:
            self.counts[step.__name__] += 1
            step()
        self.move_on()
        self.end()
        return self.counts

    def numbers(self) -> dict[int, int]:
        return {
            p: counter.lwm for p, counter in enumerate(session_of(self.db).store.state.counters)
        }

    def learn(self) -> None:
        """Look which maps there are."""
        for number, record in session_of(self.db).store.state.namespaces.items():
            if not record.hidden:
                self.data.setdefault(number, {})
                self.names[number] = record.name

    def commit(self, writes: list[tuple[str, bytes, bytes | None]]) -> None:
        before = self.numbers()
        maps = {name: self.db.map(name) for name, _, _ in writes}
        self.learn()
        ids = {name: namespace_of(handle).id for name, handle in maps.items()}
        with self.db.transaction() as tx:
            for name, key, value in writes:
                if value is None:
                    tx[maps[name]].discard(key)
                else:
                    tx[maps[name]][key] = value
        commit = Commit({(ids[n], key): value for n, key, value in writes}, dict(self.names))
        for (number, key), value in commit.updates.items():
            if value is None:
                self.data[number].pop(key, None)
            else:
                self.data[number][key] = value
        self.moved(before, commit)

    def moved(self, before: dict[int, int], commit: Commit | None) -> None:
        after = self.numbers()
        if after == before:
            return
        if commit is not None:
            self.commits.append(commit)
            for p, number in after.items():
                self.owner |= {(p, n): commit for n in range(before[p] + 1, number + 1)}
        self.moments.append(self.now())

    def now(self) -> Moment:
        return Moment(
            self.numbers(),
            deepcopy(self.data),
            dict(self.names),
            session_of(self.db).store.state.time,
            len(self.catalog),
        )

    def write(self) -> None:
        rng = self.rng
        self.commit(
            [
                (
                    rng.choice(NAMES),
                    rng.choice((b"", b"\xff", b"%d" % rng.randrange(12))),
                    None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 40, 3_000))),
                )
                for _ in range(rng.choice((1, 1, 2, 6)))
            ]
        )

    def clear(self) -> None:
        name = self.rng.choice(NAMES)
        self.commit([(name, key, None) for key in self.data.get(self.id_of(name), ())])

    def undone(self) -> None:
        with suppress(ZeroDivisionError), self.db.transaction() as tx:
            tx[self.db.map("a")][b"never"] = b"x"
            raise ZeroDivisionError
        self.learn()

    def id_of(self, name: str) -> int:
        return next((number for number, own in self.names.items() if own == name), -1)

    def drop(self) -> None:
        name = self.rng.choice(NAMES)
        number = self.id_of(name)
        if number > 0:
            self.db.drop(name)
            self.catalog.append(("drop", number, name, None))
            del self.data[number], self.names[number]

    def rename(self) -> None:
        old, new = self.rng.sample(NAMES, 2)
        number = self.id_of(old)
        if number > 0 and self.id_of(new) < 0:
            self.db.rename(old, new)
            self.catalog.append(("rename", number, old, new.encode()))
            self.names[number] = new

    def rotate(self) -> None:
        for _ in range(self.rng.choice((3, 30))):
            key = b"%d" % self.rng.randrange(8)
            self.commit([(self.rng.choice(NAMES), key, bytes(self.rng.choice((9_000, 70_000))))])

    def db_checkpoint(self) -> None:
        self.db.checkpoint()

    def reopen(self) -> None:
        self.db.close()
        self.check_data(self.path, {}, self.now())
        self.db = self.opened()

    def trim(self) -> None:
        """Let go of what nothing holds of the log."""
        first = Log(str(self.path)).earliest().position
        self.db.close()
        with self.opened(retain_bytes=1) as db:
            db.checkpoint()
        self.db = self.opened()
        self.trimmed |= Log(str(self.path)).earliest().position > first

    def backup(self) -> None:
        path = self.fresh("copy")
        self.db.backup(path, verify=False)
        self.copies.append((path, self.now()))
        self.check_data(path, {}, self.now())

    def attach(self) -> None:
        name = self.rng.choice(NAMES)
        if self.id_of(name) > 0:
            return
        found = {b"load%d" % n: b"%d" % n for n in range(self.rng.choice((1, 9)))}
        load = make_load(self.fresh("load"), found, partitions=self.options["partitions"])
        before = self.numbers()
        self.db.attach(load, name)
        self.learn()
        self.data[self.id_of(name)] = dict(found)
        self.loaded = True
        self.moved(before, None)

    def carry(self) -> None:
        """Carry the log into an archive, an older one or a new one."""
        path = self.rng.choice([*self.archives, self.fresh("archive")])
        self.db.close()
        try:
            compact(
                str(self.path), str(path), Runner(), task_bytes=self.rng.choice((9_000, 1 << 26))
            )
            if path not in self.archives:
                self.archives.append(path)
            self.check_data(path, {}, self.now())
        except HistoryTruncatedError:
            assert self.trimmed or self.loaded
            assert path in self.archives
            self.archives.remove(path)
        finally:
            self.db = self.opened()

    # -------------------------------------------------------------- streams

    def follow(self) -> None:
        given = {
            "path": str(self.path),
            "view": "changes",
            "startingCounters": self.rng.choice(("earliest", "latest")),
            "includeCatalog": self.rng.choice(("true", "false")),
            "failOnDataLoss": "false" if self.loaded else "true",
        }
        if self.rng.random() < 0.4 and self.names:
            given["namespace"] = self.rng.choice(list(self.names.values()))
        options = parse(given, stream=True)
        self.publish()
        stream = ChangeStream(options)
        self.streams.append(Followed(options, stream, [stream.initial()]))

    def publish(self) -> None:
        """Let readers see all that was committed."""
        self.db.sync()
        session_of(self.db).maintenance.maintain()

    def move_on(self) -> None:
        """Read a batch of a stream, and one that it had read before, with or without a memory."""
        if not self.streams:
            return
        self.publish()
        one = self.rng.choice(self.streams)
        if self.rng.random() < 0.3:
            one.stream = ChangeStream(one.options)
        try:
            end = one.stream.latest(one.offsets[-1], self.rng.choice((None, None, 1, 5, 40)))
            found = rows_of(one.stream.tasks(one.offsets[-1], end))
        except HistoryTruncatedError:
            assert self.trimmed or self.loaded
            self.streams.remove(one)
            return
        self.check_rows(found)
        one.offsets.append(end)
        one.batches.append(found)
        self.counts["batches"] += 1
        place = self.rng.randrange(len(one.batches))
        with suppress(HistoryTruncatedError):
            again = rows_of(ChangeStream(one.options).tasks(*one.offsets[place : place + 2]))
            if not self.trimmed:  # what it was read from is there
                assert again == one.batches[place]
            self.counts["replays"] += 1

    def check_stream(self, one: Followed) -> None:
        """Read a stream to its end: it has shown everything behind its start, once."""
        while True:
            end = one.stream.latest(one.offsets[-1], None)
            if end == one.offsets[-1]:
                break
            one.batches.append(rows_of(one.stream.tasks(one.offsets[-1], end)))
            one.offsets.append(end)
        if self.trimmed and not one.options.fail_on_data_loss:
            return  # it may have skipped what is gone
        found = [row for batch in one.batches for row in batch]
        low, high = (self.vector(offset) for offset in (one.offsets[0], one.offsets[-1]))
        self.check_whole(found, low, high, one.options.namespace)

    @staticmethod
    def vector(offset: dict[str, Any]) -> dict[int, int]:
        return {int(p): number for p, (_, number) in offset["p"].items()}

    # -------------------------------------------------------------- looking

    def look(self) -> None:
        """Read the store, a copy or an archive in some way."""
        self.publish()
        rng = self.rng
        rng.choice((self.look_at_changes, self.look_at_the_past, self.look_at_times))()

    def places(self) -> list[Path]:
        return [path for path, _ in self.copies] + self.archives

    def look_at_changes(self) -> None:
        path = self.rng.choice([self.path, *self.places()])
        self.check_changes(path)

    def check_changes(self, path: Path) -> None:
        rng = self.rng
        options: dict[str, Any] = {"includeCatalog": rng.choice(("true", "false"))}
        name = None
        if path not in self.archives:
            options["failOnDataLoss"] = "false"
            options["minPartitions"] = rng.choice((1, 2, 9))
            low = {p: n for p, (_, n) in Log(str(path)).earliest().vector().items()}
        if rng.random() < 0.3:
            options["batchRows"] = rng.choice((1, 7))
        if rng.random() < 0.3 and path == self.path and self.names:
            name = options["namespace"] = rng.choice(list(self.names.values()))
        found = rows(path, "changes", **options)
        self.check_rows(found)
        if path in self.archives:
            archive = archives.read_archive(str(path))
            low = {p: n for p, (_, n) in archive.stretches[0].low.items()}
            high = {p: n for p, (_, n) in archive.high.items()}
        else:
            high = {p: n for p, (_, n) in Log(str(path)).newest().vector().items()}
        self.check_whole(found, low, high, name)
        if options["includeCatalog"] == "true" and name is None:
            self.check_catalog(found, low, high)
        self.counts["changes"] += 1

    def check_rows(self, found: list[Row]) -> None:
        """Compare rows with what was committed, and with what they were before."""
        for row in found:
            if row["op"] in ("put", "delete"):
                place = row["partition"], row["counter"]
                commit = self.owner[place]
                assert self.seen.setdefault(place, row) == row
                assert commit.updates[row["map_id"], row["key"]] == row["value"]
                assert commit.names[row["map_id"]] == row["namespace"]
        self.counts["rows"] += len(found)

    def check_whole(
        self, found: list[Row], low: dict[int, int], high: dict[int, int], name: str | None
    ) -> None:
        """Check that rows are all changes between two vectors, each once, of a name or all."""
        places = [(r["partition"], r["counter"]) for r in found if r["op"] in ("put", "delete")]
        wanted = {
            (p, n)
            for p in low
            for n in range(low[p] + 1, high[p] + 1)
            if (p, n) in self.owner
            and (
                name is None
                or ((p, n) in self.seen and self.seen[p, n]["namespace"] == name)
                or ((p, n) not in self.seen and name in self.owner[p, n].names.values())
            )
        }
        if name is not None:
            wanted = {place for place in wanted if place in self.seen}
        assert sorted(places) == sorted(wanted)

    def check_catalog(self, found: list[Row], low: dict[int, int], high: dict[int, int]) -> None:
        """Check what became of maps between two vectors; a trimmed log may lack what was first."""
        told = sorted((r for r in found if r["partition"] is None), key=lambda r: r["counter"])
        shown = [(row["op"], row["map_id"], row["namespace"], row["value"]) for row in told]
        end = max(
            (m.catalog for m in self.moments if all(m.numbers[p] <= high[p] for p in high)),
            default=0,
        )
        begin = max(
            (m.catalog for m in self.moments if all(m.numbers[p] <= low[p] for p in low)),
            default=0,
        )
        wanted = self.catalog[begin:end]
        assert shown == (wanted[len(wanted) - len(shown) :] if any(low.values()) else wanted)

    def check_data(self, path: Path, options: dict[str, str], moment: Moment) -> None:
        """Compare a snapshot with a moment."""
        more = self.rng.choice(({}, {"batchRows": "3"}, {"minPartitions": "2"}))
        found: dict[tuple[str, int], dict[bytes, bytes]] = {}
        for row in rows(path, "snapshot", **options, **more):
            pairs = found.setdefault((row["namespace"], row["map_id"]), {})
            assert row["key"] not in pairs
            pairs[row["key"]] = row["value"]
            place = row["partition"], row["counter"]
            if place in self.seen:
                assert self.seen[place]["value"] == row["value"]
        assert found == moment.maps(), (path, options)
        self.counts["data"] += 1

    def look_at_the_past(self) -> None:
        path = self.rng.choice([self.path, *self.places()])
        moment = self.rng.choice(self.moments)
        text = json.dumps({str(p): number for p, number in moment.numbers.items()})
        self.check_past(path, moment, text)

    def look_at_times(self) -> None:
        """Look as of the time of a commit behind which nothing became of maps until the next."""
        places = [
            place
            for place, (one, then) in enumerate(
                zip(self.moments, [*self.moments[1:], self.now()], strict=True)
            )
            if one.catalog == then.catalog and (then.time > one.time or then is self.moments[-1])
        ]
        if places and self.places():
            moment = self.moments[self.rng.choice(places)]
            time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment.time)
            self.check_past(self.rng.choice(self.places()), moment, time.isoformat())

    def check_past(self, path: Path, moment: Moment, text: str) -> None:
        """Compare an older cut with a moment, or see that it is refused with a reason."""
        if path == self.path:
            self.db.close()
        reached = next((then.numbers for copy, then in self.copies if copy == path), None)
        if path in self.archives:
            reached = {p: n for p, (_, n) in archives.read_archive(str(path)).high.items()}
        try:
            if reached is None or all(moment.numbers[p] <= n for p, n in reached.items()):
                self.check_data(path, {"asOf": text}, moment)
                self.counts["past"] += 1
        except GONE:
            if path in self.archives:
                assert archives.read_archive(str(path)).base is not None
            self.counts["refused"] += 1
        finally:
            if path == self.path:
                self.db = self.opened()

    def end(self) -> None:
        """Look at everything once more."""
        self.publish()
        self.check_rows(rows(self.path, "changes", failOnDataLoss="false"))
        for one in self.streams:
            with suppress(HistoryTruncatedError):
                self.check_stream(one)
        for path in (self.path, *self.places()):
            self.check_changes(path)
            for moment in self.rng.sample(self.moments, min(len(self.moments), 4)):
                text = json.dumps({str(p): number for p, number in moment.numbers.items()})
                self.check_past(path, moment, text)
        for path, moment in self.copies:
            self.check_data(path, {}, moment)
        self.db.close()
        self.check_data(self.path, {}, Moment({}, self.data, self.names, 0, 0))
