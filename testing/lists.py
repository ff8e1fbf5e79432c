"""What transactions that append to lists, and read them, tell of their order.

The value of each key is a list of elements that are written once in a history (list-append, after
Elle: Kingsbury and Alvaro, VLDB 2020).  Whoever reads a list sees what was written before it, in
order: so the order of the versions of each key is known without a look into any log.

    T1 appends 1 to x     T2 appends 2 to x     T3 reads x: [1, 2]
    versions of x: 1, 2;  T1 -ww-> T2 -wr-> T3

``check_lists`` finds what is wrong with the lists by themselves, and leaves the rest to the graph
of ``cycles``.  All keys have to be read once behind all transactions: these are the ``finals``.

Left out: who appends (``transaction_clients``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from .cycles import TransactionAnomaly, check_transactions
from .transactions import COMMITTED, UNKNOWN, Transaction, TransactionHistory, TxKey, TxValue

Element = int


@dataclass(frozen=True, slots=True)
class Append:
    """Append an element to the list of a key."""

    key: str
    element: Element


@dataclass(frozen=True, slots=True)
class ReadList:
    """Read the list of a key; without a value it is empty."""

    key: str
    found: tuple[Element, ...]


@dataclass(slots=True, kw_only=True)
class ListTransaction:
    """One transaction as its client saw it; times are of one clock, unknown ends are ``inf``."""

    id: str
    start: float
    end: float = inf
    status: str = UNKNOWN
    steps: list[Append | ReadList] = field(default_factory=list)


def check_lists(
    transactions: Iterable[ListTransaction], finals: Mapping[str, Sequence[Element]]
) -> list[TransactionAnomaly]:
    """Return what keeps a history of lists from being strictly serializable.

    Lists that cannot be are returned alone.  Names are those of ``check_transactions``, and

    - ``duplicate``: an element is twice in a list;
    - ``incompatible order``: two lists of a key of which neither is the beginning of the other;
    - ``torn append``: elements that one transaction appended do not stand together.
    """
    transactions = list(transactions)
    alone = [*_wrong_lists(transactions, finals), *_torn(transactions, finals)]
    return alone or check_transactions(history_of_lists(transactions, finals))


def history_of_lists(
    transactions: Iterable[ListTransaction], finals: Mapping[str, Sequence[Element]]
) -> TransactionHistory:
    """Return what each transaction read and wrote, each version named by its last element."""
    told = [_told(one) for one in transactions]
    replaced = {value for one in told for values in one.replaced.values() for value in values}
    versions: dict[TxKey, list[TxValue]] = {
        key: [element for element in found if element not in replaced]
        for key, found in finals.items()
    }
    return TransactionHistory(transactions=told, versions=versions)


def _told(one: ListTransaction) -> Transaction:
    reads: dict[TxKey, TxValue] = {}
    seen: dict[str, tuple[Element, ...]] = {}
    own: dict[str, list[Element]] = {}
    complaints = []
    for step in one.steps:
        if isinstance(step, Append):
            own.setdefault(step.key, []).append(step.element)
            continue
        mine = tuple(own.get(step.key, ()))
        others = step.found[: len(step.found) - len(mine)]
        before = seen.setdefault(step.key, others)
        if before + mine != step.found:
            complaints.append(f"saw {step.key!r} as {step.found!r} after {before + mine!r}")
        reads.setdefault(step.key, before[-1] if before else None)
    return Transaction(
        id=one.id,
        start=one.start,
        end=one.end,
        status=one.status,
        reads=reads,
        writes={key: elements[-1] for key, elements in own.items()},
        replaced={key: elements[:-1] for key, elements in own.items()},
        complaints=complaints,
    )


# ------------------------------------------------------------------ lists by themselves


def _wrong_lists(
    transactions: Iterable[ListTransaction], finals: Mapping[str, Sequence[Element]]
) -> Iterator[TransactionAnomaly]:
    for reader, key, found in _all_read(transactions, finals):
        if len(set(found)) < len(found):
            text = f"{reader} read {found!r} at {key!r}"
            yield TransactionAnomaly("duplicate", (reader,), text)
        elif found != tuple(finals.get(key, ()))[: len(found)]:
            text = f"{reader} read {found!r} at {key!r}, where {list(finals.get(key, ()))} is last"
            yield TransactionAnomaly("incompatible order", (reader,), text)


def _all_read(
    transactions: Iterable[ListTransaction], finals: Mapping[str, Sequence[Element]]
) -> Iterator[tuple[str, str, tuple[Element, ...]]]:
    """Yield who read which list, without what the reader itself had appended."""
    for one in transactions:
        own: dict[str, int] = {}
        for step in one.steps:
            if isinstance(step, Append):
                own[step.key] = own.get(step.key, 0) + 1
            elif one.status == COMMITTED:
                yield one.id, step.key, step.found[: len(step.found) - own.get(step.key, 0)]
    for key, found in finals.items():
        yield "the last read", key, tuple(found)


def _torn(
    transactions: Iterable[ListTransaction], finals: Mapping[str, Sequence[Element]]
) -> Iterator[TransactionAnomaly]:
    places = {
        (key, element): place
        for key, found in finals.items()
        for place, element in enumerate(found)
    }
    for one in transactions:
        own: dict[str, list[Element]] = {}
        for step in one.steps:
            if isinstance(step, Append):
                own.setdefault(step.key, []).append(step.element)
        for key, elements in own.items():
            at = [places[key, element] for element in elements if (key, element) in places]
            whole = not at or at == list(range(at[0], at[0] + len(elements)))
            if not whole:
                text = f"{one.id} appended {elements} to {key!r}, where they are at places {at}"
                yield TransactionAnomaly("torn append", (one.id,), text)
