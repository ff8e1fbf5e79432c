"""What members say to agree, as messages of the wire: one kind for each, and back.

What an envelope has beside its message is of the connection: who sends, its nonce and the cluster
are what it introduced itself with, and what it knows to be decided goes ahead of its messages.

Invariants:

- Of whatever ``checked_message`` passes ``telling_of`` makes what is told, or ``FrameError``.
- A lease never gets longer on its way: it is cut to whole microseconds.
- Decisions that are told at once are at most ``DECIDED_BYTES`` long, or one: who gets fewer than it
  asked for is still behind, and asks again.

Left out: whether what is told may be (``machine``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ...affinity.changes import Decision, TopologyChange
from ...affinity.topology import Incarnation, incarnation_of
from ...wal.records.shapes import UndecodableRecordError
from ..net.frames import FrameError, Message
from ..net.handshake import Introduction
from ..net.kinds import BY_NAME, BY_NUMBER
from .encoding import decision_bytes, decision_of, topology_bytes, topology_of
from .fields import as_bytes, as_id, as_list, as_number, each, maybe, read_fields
from .messages import (
    Acceptance,
    Accepted,
    AskPromise,
    ChangeRefused,
    Credentials,
    Decided,
    Envelope,
    Fetch,
    Guard,
    Join,
    JoinRefused,
    Lease,
    Ping,
    Pong,
    Promise,
    Propose,
    ProposeChange,
    Release,
    Telling,
    Term,
)

DECIDED_BYTES = 4 << 20
"""Bytes of decisions in one message; more of them wait until these have been learnt."""

_MICROSECONDS = 1_000_000


def message_of(telling: Telling) -> Message:
    """Return the message that says it."""
    form = _FORMS[type(telling)]
    return BY_NAME[form.name].message(*form.fields(telling))


def telling_of(message: Message) -> Telling:
    """Return what a message of a control connection says; ``FrameError`` if that cannot be."""
    form = _BY_NUMBER.get(message[0])
    if form is None:
        raise FrameError(f"{BY_NUMBER[message[0]].name} is not said to members of this version")
    try:
        return form.telling(*message[1:])
    except (ValueError, UndecodableRecordError) as error:
        raise FrameError(f"{form.name}: {error}") from None


def envelope_of(sender: Introduction, decided: int, message: Message) -> Envelope:
    """Return a message with what its connection says; raises as ``telling_of`` does."""
    return Envelope(
        sender=incarnation_of(sender.member, sender.boot),
        nonce=sender.nonce,
        cluster=UUID(bytes=sender.cluster) if sender.cluster else None,
        decided=decided,
        message=telling_of(message),
    )


# ------------------------------------------------------------------ fields


def _term_row(term: Term) -> list[Any]:
    return [term.number, term.member.bytes]


def _term(row: list[Any]) -> Term:
    return Term(*read_fields(row, as_number, as_id))


def _credentials_row(credentials: Credentials) -> list[Any]:
    member, boot = credentials.incarnation
    return [member.bytes, boot, credentials.last, credentials.fresh, credentials.end]


def _credentials(row: list[Any]) -> Credentials:
    member, boot, last, fresh, end = read_fields(
        row, as_id, as_number, as_bytes, as_bytes, as_number
    )
    return Credentials(incarnation=Incarnation(member, boot), last=last, fresh=fresh, end=end)


def _accepted_row(accepted: Acceptance | None) -> list[Any] | None:
    if accepted is None:
        return None
    return [_term_row(accepted.term), decision_bytes(accepted.decision)]


def _acceptance(row: list[Any] | None) -> Acceptance | None:
    if row is None:
        return None
    term, decision = read_fields(row, as_list, as_bytes)
    return Acceptance(_term(term), decision_of(decision))


def _change_bytes(change: TopologyChange) -> bytes:
    return decision_bytes(Decision(0, (change,)))


def _change(data: bytes) -> TopologyChange:
    changes = decision_of(data).changes
    if len(changes) != 1:
        raise ValueError(f"expected one change, found {len(changes)}")
    return changes[0]


def _first_few(decisions: Sequence[Decision]) -> list[bytes]:
    """Return the bytes of as many decisions as may be told at once."""
    told: list[bytes] = []
    room = DECIDED_BYTES
    for decision in decisions:
        data = decision_bytes(decision)
        room -= len(data)
        if told and room < 0:
            break
        told.append(data)
    return told


# ------------------------------------------------------------------ what is told


def _ask_promise(term: list[Any], sure: bool) -> AskPromise:
    return AskPromise(term=_term(term), sure=sure)


def _promise_fields(promise: Promise) -> list[Any]:
    return [
        _term_row(promise.term),
        promise.sure,
        promise.granted,
        _term_row(promise.promised),
        _credentials_row(promise.credentials),
        _accepted_row(promise.accepted),
    ]


def _promise(
    term: list[Any],
    sure: bool,
    granted: bool,
    promised: list[Any],
    credentials: list[Any],
    accepted: list[Any] | None,
) -> Promise:
    return Promise(
        term=_term(term),
        sure=sure,
        granted=granted,
        promised=_term(promised),
        credentials=_credentials(credentials),
        accepted=_acceptance(accepted),
    )


def _propose(term: list[Any], decision: bytes) -> Propose:
    return Propose(term=_term(term), decision=decision_of(decision))


def _accepted(term: list[Any], index: int, promised: list[Any]) -> Accepted:
    return Accepted(term=_term(term), index=as_number(index), promised=_term(promised))


def _decided_fields(decided: Decided) -> list[Any]:
    topology = decided.topology
    return [
        _first_few(decided.decisions),
        None if topology is None else topology_bytes(topology),
    ]


def _decided(decisions: list[bytes], topology: bytes | None) -> Decided:
    return Decided(
        decisions=tuple(map(decision_of, decisions)),
        topology=None if topology is None else topology_of(topology),
    )


def _fetch(after: int) -> Fetch:
    return Fetch(after=as_number(after))


def _ping(term: list[Any], round_: int, known: int) -> Ping:
    return Ping(term=_term(term), round=as_number(round_), known=as_number(known))


def _pong_fields(pong: Pong) -> list[Any]:
    return [
        _term_row(pong.term),
        pong.round,
        pong.votes,
        _term_row(pong.promised),
        pong.end,
        sorted(member.bytes for member in pong.reaches),
    ]


def _pong(
    term: list[Any],
    round_: int,
    votes: bool,
    promised: list[Any],
    end: int,
    reaches: list[bytes],
) -> Pong:
    return Pong(
        term=_term(term),
        round=as_number(round_),
        votes=votes,
        promised=_term(promised),
        end=as_number(end),
        reaches=frozenset(map(as_id, reaches)),
    )


def _lease_fields(lease: Lease) -> list[Any]:
    return [_term_row(lease.term), lease.round, int(lease.seconds * _MICROSECONDS)]


def _lease(term: list[Any], round_: int, microseconds: int) -> Lease:
    seconds = as_number(microseconds) / _MICROSECONDS
    return Lease(term=_term(term), round=as_number(round_), seconds=seconds)


def _release_fields(release: Release) -> list[Any]:
    target = release.target
    return [release.partition, release.epoch, None if target is None else target.bytes]


def _release(partition: int, epoch: int, target: bytes | None) -> Release:
    return Release(
        partition=as_number(partition), epoch=as_number(epoch), target=maybe(as_id)(target)
    )


def _join(credentials: list[Any], address: str, voter: bool) -> Join:
    return Join(credentials=_credentials(credentials), address=address, voter=voter)


def _join_refused(member: bytes, boot: int, nonce: bytes, reason: str) -> JoinRefused:
    incarnation = Incarnation(as_id(member), as_number(boot))
    return JoinRefused(incarnation=incarnation, nonce=nonce, reason=reason)


def _propose_change_fields(asked: ProposeChange) -> list[Any]:
    partitions, epochs, changed = zip(*asked.guards, strict=True) if asked.guards else ((), (), ())
    change = _change_bytes(asked.change)
    return [asked.request, change, [*partitions], [*epochs], [*changed], asked.after]


def _propose_change(
    request: int,
    change: bytes,
    partitions: list[int],
    epochs: list[int],
    changed: list[int],
    after: int | None,
) -> ProposeChange:
    columns = map(each(as_number), (partitions, epochs, changed))
    return ProposeChange(
        request=as_number(request),
        change=_change(change),
        guards=tuple(Guard(*row) for row in zip(*columns, strict=True)),
        after=maybe(as_number)(after),
    )


def _change_refused(request: int, reason: str, stale: bool) -> ChangeRefused:
    return ChangeRefused(request=as_number(request), reason=reason, stale=stale)


class _Form(NamedTuple):
    """The kind of message for a telling, its fields in order, and what makes one of these."""

    name: str
    fields: Callable[[Any], Sequence[object]]
    telling: Callable[..., Telling]


_FORMS: Mapping[type, _Form] = {
    AskPromise: _Form("ask-promise", lambda one: (_term_row(one.term), one.sure), _ask_promise),
    Promise: _Form("promise", _promise_fields, _promise),
    Propose: _Form(
        "propose", lambda one: (_term_row(one.term), decision_bytes(one.decision)), _propose
    ),
    Accepted: _Form(
        "accepted",
        lambda one: (_term_row(one.term), one.index, _term_row(one.promised)),
        _accepted,
    ),
    Decided: _Form("decided", _decided_fields, _decided),
    Fetch: _Form("fetch", lambda one: (one.after,), _fetch),
    Ping: _Form("ping", lambda one: (_term_row(one.term), one.round, one.known), _ping),
    Pong: _Form("pong", _pong_fields, _pong),
    Lease: _Form("lease", _lease_fields, _lease),
    Release: _Form("release", _release_fields, _release),
    Join: _Form(
        "join", lambda one: (_credentials_row(one.credentials), one.address, one.voter), _join
    ),
    JoinRefused: _Form(
        "join-refused",
        lambda one: (
            one.incarnation.member.bytes,
            one.incarnation.boot,
            one.nonce,
            one.reason,
        ),
        _join_refused,
    ),
    ProposeChange: _Form("propose-change", _propose_change_fields, _propose_change),
    ChangeRefused: _Form(
        "change-refused", lambda one: (one.request, one.reason, one.stale), _change_refused
    ),
}
_BY_NUMBER = {BY_NAME[form.name].number: form for form in _FORMS.values()}
