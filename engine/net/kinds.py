"""What members and clients say to each other: every kind of message, with its number for ever.

A message is ``[number, field, ...]``.  What speaks of many partitions has columns, arrays of which
the n-th items belong together, and no record for each.  Three things that every message needs are
not in it: who sent it, on which connection and for which cluster is what the handshake said, and
how many decisions the sender knows is in ``known``, which goes ahead of the next message whenever
it has changed.

Invariants:

- A number, a name and the order of fields never change.  A later version appends fields, which an
  earlier one cuts off, and adds kinds, which it refuses: whoever sends them asks first which
  version of the wire the other end speaks.
- What ``checked_message`` returns has all fields, each of its type.  What they mean is checked by
  who acts on it.

Types of fields: ``int``, ``bytes``, ``text``, ``flag``, ``list``, ``map`` and ``any``; with ``*``
an array of them, with ``?`` one of them or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from operator import itemgetter
from typing import Any, Final, Literal

from .frames import FrameError, Message

Channel = Literal["control", "data", "client"]
"""The class of a connection: agreement and leases, partitions and transactions, or clients."""

CONTROL: Final = "control"
DATA: Final = "data"
CLIENT: Final = "client"
CHANNELS: tuple[Channel, ...] = (CONTROL, DATA, CLIENT)
EVERY: Final = "every"

TYPES: Mapping[str, frozenset[type]] = {
    "int": frozenset({int}),
    "bytes": frozenset({bytes}),
    "text": frozenset({str}),
    "flag": frozenset({bool}),
    "list": frozenset({list}),
    "map": frozenset({dict}),
    "any": frozenset({int, bytes, str, bool, list, dict, float, type(None)}),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind."""

    name: str
    type_name: str
    types: frozenset[type]
    items: frozenset[type] | None
    """The types of the items of a column; None if it is not one."""


class TypedFields:
    """TypedFields in their order, and whether values are of their types.

    That is looked at in few passes of C, as it is for everything that arrives: the types of all
    values at once, then those of the items of all columns that have the same.
    """

    __slots__ = ("_columns", "_types", "every")

    def __init__(self, every: Sequence[Field]) -> None:
        self.every = tuple(every)
        self._types = frozenset(product(*(field.types for field in every)))
        places: dict[frozenset[type], list[int]] = {}
        for place, field in enumerate(every):
            if field.items is not None:
                places.setdefault(field.items, []).append(place)
        self._columns = [(items, picking(found)) for items, found in places.items()]

    def __repr__(self) -> str:
        return f"<TypedFields {' '.join(field.name for field in self.every)}>"

    def __len__(self) -> int:
        return len(self.every)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.every)

    def wrong(self, values: Sequence[Any]) -> str | None:
        """Return which field is not of its type, and what it is; None if all are right."""
        right = tuple(map(type, values)) in self._types
        for items, picked in self._columns if right else ():
            right = right and items.issuperset(map(type, chain.from_iterable(picked(values))))
        return None if right else next(filter(None, map(_wrong, self.every, values)))


def picking(places: Sequence[int]) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Return what picks the values at some places, however many those are."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One kind of message."""

    number: int
    name: str
    channel: Channel | Literal["every"]
    fields: TypedFields
    end: int
    """How many items a message has: the number, then the fields."""

    def __repr__(self) -> str:
        return f"<MessageKind {self.number} {self.name}>"

    def message(self, *values: object) -> Message:
        """Return the message that has these fields, in order."""
        message = [self.number, *values]
        if len(message) != self.end:
            raise TypeError(f"{self.name} has {self.end - 1} fields, not {len(values)}")
        return message


# number, name, class of connection, fields in order.  Append; change nothing.  Numbers that are
# missing had kinds which nobody ever sent.
TABLE: tuple[tuple[int, str, Channel | Literal["every"], str], ...] = (
    # Every connection.
    (1, "introduction", EVERY,
     "magic:bytes version_min:int version_max:int role:text channel:text cluster:bytes"
     " member:bytes boot:int number:int decided:int nonce:bytes"
     " wanted:bytes history:bytes"),
    (2, "refusal", EVERY, "code:text reason:text"),
    (3, "known", EVERY, "decided:int"),
    # Agreement and leases (``engine.agreement.wire``).  A term is (number, member), credentials are
    # (member, boot, last nonce, fresh nonce, end), what was accepted (term, decision).  Decisions,
    # topologies and changes are as in the configuration log; a change is a decision of index 0.
    (10, "ask-promise", CONTROL, "term:list sure:flag"),
    (11, "promise", CONTROL,
     "term:list sure:flag granted:flag promised:list credentials:list accepted:list?"),
    (12, "propose", CONTROL, "term:list decision:bytes"),
    (13, "accepted", CONTROL, "term:list index:int promised:list"),
    (14, "decided", CONTROL, "decisions:bytes* topology:bytes?"),
    (15, "ping", CONTROL, "term:list round:int known:int"),
    (16, "pong", CONTROL,
     "term:list round:int votes:flag promised:list end:int"
     " reaches:bytes*"),
    (17, "lease", CONTROL, "term:list round:int lease_us:int"),
    (18, "release", CONTROL, "partition:int epoch:int target:bytes?"),
    (21, "join", CONTROL, "credentials:list address:text voter:flag"),
    (22, "leave", CONTROL, "member:bytes boot:int"),
    (24, "fetch", CONTROL, "after:int"),
    (25, "join-refused", CONTROL, "member:bytes boot:int nonce:bytes reason:text"),
    (26, "propose-change", CONTROL,
     "request:int change:bytes partitions:int* epochs:int* changed:int* after:int?"),
    (27, "change-refused", CONTROL, "request:int reason:text stale:flag"),
    # Transactions of several groups (``engine.node.tx_messages``).  ``tx`` is an id, keys are full
    # ones, a failure is (code, message, fields).
    (42, "lock", DATA,
     "ask:int tx:bytes attempt:int given:bytes? partition:int epoch:int keys:bytes*"
     " opened:bytes?"),
    (43, "locked", DATA, "ask:int partition:int failure:list?"),
    (44, "unlock", DATA, "ask:int partitions:int*"),
    (47, "probe", DATA, "initiator:bytes path:bytes* ask:int round:int waits:flag"),
    (48, "confirm", DATA, "ask:int partition:int reads:list* ranges:list* opened:bytes?"),
    (49, "confirmed", DATA, "ask:int partition:int failure:list?"),
    (50, "prepare", DATA,
     "ask:int tx:bytes attempt:int given:bytes? tag:text? home:int participants:int* locked:flag"
     " partition:int epoch:int keys:bytes* values:any* reads:list* ranges:list* shared:bytes*"
     " opened:bytes?"),
    (51, "prepared", DATA, "tx:bytes attempt:int run:int* time:int"),
    (52, "refused", DATA, "tx:bytes attempt:int partition:int failure:list"),
    (53, "decision", DATA, "tx:bytes attempt:int runs:int* time:int partitions:int*"),
    (54, "settled", DATA, "collectors:int* partitions:int* txs:bytes*"),
    (55, "question", DATA,
     "tx:bytes attempt:int near:bytes boot:int partition:int epoch:int went_back:flag"),
    (56, "forget", DATA, "partitions:int* txs:bytes*"),
    (57, "pin", DATA, "snapshot:bytes attempt:int decided:int"),
    (58, "pinned", DATA,
     "snapshot:bytes attempt:int decided:int partitions:int* prepared:list* committed:list*"),
    (59, "resume", DATA, "snapshot:bytes attempt:int"),
    (60, "held", DATA, "snapshot:bytes attempt:int still:flag"),
    # Copies of partitions (``engine.replication``).  ``numbers`` are those of streams (W3).  In a
    # ``replicate`` the columns up to ``more`` have an item per record, those from ``nears`` on one
    # per PREPARE, and the last two one per update.  What has many rows elsewhere is flat.
    (70, "replicate", DATA,
     "partitions:int* admissions:int* epochs:int* numbers:int* types:int* txs:bytes* attempts:int*"
     " times:int* run_epochs:int* firsts:int* counts:int* more:any* nears:bytes* boots:int*"
     " homes:int* namespaces:any* keys:bytes* values:any*"),
    (71, "stored", DATA, "partitions:int* admissions:int* epochs:int* numbers:int*"),
    (72, "report", DATA,
     "partitions:int* epochs:int* lwms:int* ranges:list* hwms:int* epoch_tables:list*"
     " pending:list* rolled_back:list* committed:list* bound:any* acknowledged:list* states:int*"),
    (73, "settle", DATA,
     "partitions:int* epochs:int* starts:int* transactions:list* closed:list*"
     " epoch_tables:list*"),
    (74, "settle-stored", DATA, "partitions:int* epochs:int*"),
    (75, "opened", DATA, "partitions:int* epochs:int*"),
    # A copy that was away comes back (``engine.replication.returning``); records as in the log.
    (76, "admit", DATA,
     "partitions:int* epochs:int* admissions:int* begins:int* plans:text* records:bytes*"),
    (78, "demand", DATA, "partitions:int* epochs:int* admissions:int* numbers:int*"),
    (79, "supply", DATA,
     "partitions:int* epochs:int* admissions:int* numbers:int* lasts:int* records:bytes*"
     " digests:bytes*"),
    # A copy has its primary confirm that it is in the set (``engine.node.copy_reads``).
    (80, "confirm-copy", DATA, "ask:int partitions:int* epochs:int* admissions:int* numbers:int*"),
    (81, "copy-confirmed", DATA,
     "ask:int partitions:int* epochs:int* admissions:int* numbers:int*"),
    # A piece of a full copy (``engine.data.full_pairs``); the last one has a tally instead.
    (82, "pairs", DATA,
     "partition:int epoch:int admission:int number:int lengths:bytes pairs:bytes record:bytes"
     " tally:list?"),
    # A primary asks for history that its own log has not (``engine.replication.lent``).
    (83, "reach", DATA, "ask:int partitions:int* epochs:int*"),
    (84, "reached", DATA, "ask:int partitions:int* firsts:int* lacking:list*"),
    (85, "lend", DATA, "ask:int piece:int partitions:int* epochs:int* missing:list*"),
    (86, "lent", DATA, "ask:int piece:int records:bytes* lacking:list* not_yet:list* more:flag"),
    # A collector asks a near member which transactions are over for it (``engine.node.settling``).
    (87, "ask-over", DATA, "txs:bytes*"),
    (88, "over", DATA, "txs:bytes*"),
    (89, "ask-settled", DATA, "collectors:int* partitions:int* txs:bytes*"),
    # Plain locks of open transactions (``engine.node.plain_locks``): ``name`` is that of one.
    (90, "acquire", DATA,
     "ask:int name:bytes partitions:int* epochs:int* keys:bytes* exclusive:flag reads:flag"
     " range:list? wait_us:int"),
    (91, "acquired", DATA, "ask:int name:bytes found:list? failure:list?"),
    (92, "give-back", DATA, "names:bytes*"),
    # A group does not know any more what became of its part (``engine.node.in_doubt``).
    (93, "too-old", DATA, "tx:bytes attempt:int partition:int"),
    # Clients.
    (101, "welcome", CLIENT, "cluster:bytes store:bytes history:bytes view:list"),
    (102, "request", CLIENT, "id:int left_us:int? operation:text arguments:list"),
    (103, "response", CLIENT, "id:int value:any"),
    (104, "failure", CLIENT, "id:int code:text message:text fields:map"),
    (105, "cancel", CLIENT, "id:int"),
    (106, "topology", CLIENT, "view:list"),
)  # fmt: skip


def typed_fields(text: str) -> TypedFields:
    """Return the fields in a text such as ``id:int keys:bytes* tag:text?``."""
    return TypedFields([*map(_field_of, text.split())])


def _field_of(text: str) -> Field:
    name, _, type_name = text.partition(":")
    types = TYPES[type_name.rstrip("*?")]
    if type_name.endswith("*"):
        return Field(name, type_name, TYPES["list"], types)
    none = {type(None)} if type_name.endswith("?") else set[type]()
    return Field(name, type_name, types | none, None)


KINDS: tuple[MessageKind, ...] = tuple(
    MessageKind(number, name, channel, typed_fields(fields), len(fields.split()) + 1)
    for number, name, channel, fields in TABLE
)
BY_NAME: Mapping[str, MessageKind] = {kind.name: kind for kind in KINDS}
BY_NUMBER: Mapping[int, MessageKind] = {kind.number: kind for kind in KINDS}


def checked_message(message: Message, channel: Channel) -> Message:
    """Return a message that arrived, with the fields that this version knows.

    ``FrameError`` names the kind and the field that cannot be right.
    """
    number = message[0] if message else None
    kind = BY_NUMBER.get(number) if type(number) is int else None
    if kind is None:
        shown = number if type(number) is int else _told(number)
        raise FrameError(f"a message of the kind {shown}, which is not known here")
    if kind.channel not in (channel, EVERY):
        raise FrameError(f"{kind.name} on a {channel} connection; it belongs to {kind.channel}")
    end = kind.end
    if len(message) < end:
        raise FrameError(f"{kind.name} has {len(message) - 1} fields, not {end - 1}")
    wrong = kind.fields.wrong(message[1:end])
    if wrong is not None:
        raise FrameError(f"{kind.name}: {wrong}")
    return message if len(message) == end else message[:end]


def _wrong(field: Field, value: object) -> str | None:
    """Return how a value is not of the type of its field; None if it is."""
    right = type(value) in field.types
    if right and field.items is not None:
        assert isinstance(value, list)
        right = field.items.issuperset(map(type, value))
    return None if right else f"{field.name} has to be {field.type_name}, not {_told(value)}"


def _told(value: object) -> str:
    """Return what types a value has, and not the value: it may be large, or of a user."""
    if not isinstance(value, list):
        return type(value).__name__
    return "list of " + (" and ".join(sorted({type(item).__name__ for item in value})) or "nothing")
