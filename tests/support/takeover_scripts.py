"""Scripts of takeovers: what copies log, the list that is made of their reports, and what follows.

ada bob: prepare A p0 e1 #1: a=1        these copies log a record (``support.fold_scripts``)
ada saw bob have 4                      ada, as primary, saw numbers up to 4 acknowledged by bob
ada saw bob 2 have 4                    ... by bob in boot 2; all are in boot 1
restart ada                             it goes on from a checkpoint
takeover e2: ada bob                    the list of their reports, shown below ---
stored: ada                             these log the list
opened: ada bob                         ... and that it is open
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

from support.fold_scripts import Fold, name_of, record_of
from support.takeovers import restored
from tidelog.affinity.topology import Incarnation
from tidelog.engine.replication import merging
from tidelog.engine.replication.merging import MergeError
from tidelog.engine.replication.reports import Acknowledged, report_of
from tidelog.wal.records import Columns, Opened, OpenRecord, Record, SettleRecord

NAMES = ("ada", "bob", "cyd")
COPIES = {name: Incarnation(UUID(name[0] + 31 * "0"), 1) for name in NAMES}


class TakeoverScript:
    """The folds of the copies, by name, and the newest list."""

    def __init__(self) -> None:
        self.folds = {name: Fold() for name in NAMES}
        self.seen: dict[str, list[Acknowledged]] = {name: [] for name in NAMES}
        self.settle: SettleRecord | None = None
        for fold in self.folds.values():
            fold.take("settle p0 e1 from #1")
            fold.take("open p0 e1")

    def take(self, line: str) -> list[str]:
        """Let a line happen; return what is to be shown of it."""
        head, _, rest = line.partition(": ")
        words = head.split(" ")
        if words[0] == "takeover":
            return list(self.taken_over(int(words[1][1:]), rest.split(" ")))
        if words[0] == "restart":
            fold = self.folds[words[1]]
            fold.state.position = fold.position + 1
            fold.state = restored(fold.state)
        elif "saw" in words:
            boot = int(words[3]) if words[3].isdigit() else 1
            seen = Acknowledged(COPIES[words[2]].member, boot, int(words[-1]))
            self.seen[words[0]].append(seen)
        elif words[0] in ("stored", "opened"):
            assert self.settle is not None
            row = Opened(0, self.settle.epoch)
            record: Record = self.settle if words[0] == "stored" else OpenRecord(rows=(row,))
            for name in rest.split(" "):
                self.folds[name].take_record(record)
        else:
            for name in words:
                self.folds[name].take_record(record_of(rest))
        return []

    def taken_over(self, epoch: int, names: list[str]) -> Iterator[str]:
        """Make a list of the reports of some copies; yield how it is shown."""
        reports = [
            report_of(
                self.folds[name].state,
                0,
                copy=COPIES[name],
                epoch=epoch,
                acknowledged=self.seen[name],
            )
            for name in names
        ]
        try:
            made = merging.merged(0, epoch, reports)
        except MergeError as error:
            yield f"no list: {error}"
            return
        self.settle = made.settle
        table = " ".join(f"{one}:{start}" for one, start in made.settle.epochs)
        yield f"epoch {epoch} from {made.settle.start}" + (f", epochs {table}" if table else "")
        for one in made.settle.transactions:
            letter = made.letters[one.tx_id, one.attempt]
            time = f" at {one.time}" if one.time else ""
            name = name_of(one.tx_id) + (f" attempt {one.attempt}" if one.attempt > 1 else "")
            run, outcome = one.run, one.outcome.name.lower().replace("_", " ")
            held = shown(one.columns)
            yield f"  {letter}. {name} e{run.epoch} #{run.first}+{run.count} " + (
                f"{outcome}{time}{held}"
            )
        for closed in made.settle.closed:
            yield f"  f. e{closed.epoch} #{closed.first}+{closed.count} {closed.reason}"
        for copy, what in made.lacking.items():
            name = next(name for name in NAMES if COPIES[name] == copy)
            yield f"  {name} lacks {what}"

    def lines(self) -> Iterator[str]:
        """What the copies have; those that have the same in one line."""
        found: dict[str, list[str]] = {}
        for name, fold in self.folds.items():
            text = "; ".join(fold.lines()) or "nothing"
            found.setdefault(re.sub(r"^p0, ", "", text), []).append(name)
        for text, names in found.items():
            yield f"{' '.join(names)}: {text}"


def shown(columns: Columns | None) -> str:
    """How updates of a list are shown."""
    if columns is None:
        return ""
    return "".join(
        f" {key.decode()}={'-' if value is None else value.decode()}"
        for key, value in zip(columns.keys, columns.values, strict=True)
    )


def played(text: str) -> str:
    """A script with what really happens in it."""
    script, blocks = TakeoverScript(), []
    for block in text.strip().split("\n\n"):
        lines = block.partition("\n---")[0].splitlines()
        told = [said for line in lines if not line.startswith("#") for said in script.take(line)]
        blocks.append("\n".join([*lines, "---", *told, *script.lines()]))
    return "\n\n".join(blocks) + "\n"
