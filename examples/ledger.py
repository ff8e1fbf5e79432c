"""A ledger: accounts, transfers, and an index of postings by day that is kept by hand.

    python examples/ledger.py ledger.tl 1000      # so many transfers
    python examples/ledger.py ledger.tl report

A transfer is one transaction: two balances, two postings, two keys of the index.  Its id is written
down before it begins, so that after a crash `db.outcome` tells what became of it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

import tidelog
from tidelog import Map, codecs
from tidelog.codecs import I64, Dec, Str, Tuple

ACCOUNTS = ["bank", "ada", "bob", "cid", "dora"]
FIRST_DAY = date(2026, 11, 1)


@dataclass(frozen=True)
class Posting:
    """What a transfer did to one account."""

    account: str
    day: date
    amount: Decimal
    text: str


class Ledger:
    """The maps of a ledger, and what is done with them."""

    def __init__(self, db: tidelog.Database | tidelog.ReadOnlyDatabase) -> None:
        self.balances = db.map("balances", key=Str, value=Dec)
        self.postings = db.map("postings", key=I64, value=codecs.dataclass(Posting))
        self.by_day: Map[tuple[str, date, int], Decimal] = db.map("by_day", key=Tuple, value=Dec)

    def transfer(
        self, tx: tidelog.Transaction, payer: str, payee: str, amount: Decimal, day: date
    ) -> int:
        """Move an amount; return the number of its first posting."""
        postings = tx[self.postings]
        newest = postings.last()
        first = 1 if newest is None else newest[0] + 1
        for number, account, change in ((first, payer, -amount), (first + 1, payee, amount)):
            balances = tx[self.balances]
            balances[account] = balances.get(account, Decimal(0)) + change
            postings[number] = Posting(account, day, change, f"{payer} to {payee}")
            tx[self.by_day][account, day, number] = change
        return first

    def of(
        self, reader: tidelog.Snapshot | tidelog.Transaction, account: str, since: date, until: date
    ) -> Iterator[tuple[date, int, Decimal]]:
        """Yield the postings of an account, of the days from `since` to before `until`."""
        found = reader[self.by_day].range((account, since), (account, until))
        for (_, day, number), amount in found:
            yield day, number, amount

    def newest(self, reader: tidelog.Snapshot, account: str) -> tuple[date, Decimal] | None:
        """Return the last posting of an account."""
        start, stop = (account,), (account, date.max)
        with reader[self.by_day].range(start, stop, reverse=True, limit=1) as found:
            for (_, day, _), amount in found:
                return day, amount
        return None


def report(db: tidelog.Database | tidelog.ReadOnlyDatabase) -> Iterator[str]:
    """Yield a line for each account, all as of one moment."""
    ledger = Ledger(db)
    with db.snapshot() as moment:
        for account, balance in moment[ledger.balances].items():
            changes = [change for *_, change in ledger.of(moment, account, date.min, date.max)]
            assert sum(changes) == balance
            newest = ledger.newest(moment, account)
            assert newest is not None
            yield f"{account:<5} {balance:>10} in {len(changes)} postings, newest on {newest[0]}"
        assert sum(moment[ledger.balances].values()) == 0


def main(path: str, what: str) -> None:
    """Print the report, or make so many transfers: one line before each, and one behind it."""
    if what == "report":
        with tidelog.open(path, read_only=True) as db:
            print(*report(db), sep="\n")
        return
    chance = random.Random(7)
    with tidelog.open(path) as db:
        ledger = Ledger(db)
        for n in range(1, int(what) + 1):
            payer, payee = chance.sample(ACCOUNTS, 2)
            amount = Decimal(chance.randrange(1, 10_000)) / 100
            day = FIRST_DAY + timedelta(n // 20)
            tx_id = db.new_id()
            print("begin", n, tx_id.hex(), payer, payee, amount, flush=True)
            db.run(ledger.transfer, payer, payee, amount, day, id=tx_id, tag="transfer")
            print("done", n, tx_id.hex(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
