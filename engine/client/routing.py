"""Who is asked, again and again until there is an answer: the decisions of a client, without I/O.

A call of a client is a generator of *steps*.  Whoever carries them out, with sockets that block or
with many requests on one connection, sends each step's *event* in, and gets the next step, the
result, or the error for the user.  Time is told with every event, never asked.

Invariants:

- A read is asked until there is an answer or its time is over.  A commit is sent at most once
  under one id, and its answer, if that was lost, is asked for by ``outcome``.
- A partition is called unavailable only by a view that a member confirmed during this very call.
- What a step says about a member is of the newest view there is.

=========== ======================================= ==========================================
event       what has happened                       what comes next
=========== ======================================= ==========================================
Value       the answer                              the result
Failed      ``remap``, ``wait``                     by the newest view, perhaps after a pause
Failed      too few members reach one another       others are asked; else the error
Failed      ``again``                               the request is made anew
Failed      anything else                           the error
Unreached   nobody took the connection              others are asked what is new; then once more
Broke       it broke behind the request             of a read as above; of a commit its outcome
Quiet       nothing, for a while                    others are asked; the member may be gone
=========== ======================================= ==========================================

Left out: what is asked (``reads``, ``commits``), and carrying out (``lines``, ``links``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...affinity.errors import (
    CommitUnknownError,
    DeadlineError,
    NotEnoughMembersError,
    PartitionUnavailableError,
    TidelogError,
)
from ..commit.outcomes import Outcome
from .lateness import advice_in, late_hint, told_error
from .views import ClusterView, MemberView, view_of

T = TypeVar("T")

REMAP = "remap"
WAIT = "wait"
AGAIN = "again"
"""The answer for what has had no effect, and may not be sent again under its id."""
PATIENCE_S = 1.0
"""Seconds without an answer after which others are asked what is new."""
PAUSE_S, PAUSE_S_MAX = 0.0005, 0.25
"""The longest pause before the second attempt at a member, and before any."""
COMING_S_MAX = 0.05
"""The longest pause while a partition is being taken over, which takes a round trip or two."""
ATTEMPTS_KEPT_MAX = 4096
"""Ids whose refused attempts are remembered."""
TRIED_SHOWN_MAX = 8
"""Addresses that an error names."""


# ------------------------------------------------------------------ steps and events


class Ask(NamedTuple):
    """Send a request to a member, on a new connection if there is none."""

    member: bytes
    operation: str
    arguments: Sequence[object]
    until: float
    """When nobody needs the answer any more."""


class Listen(NamedTuple):
    """Wait on for the answer to the newest request to a member."""

    member: bytes
    until: float


class Drop(NamedTuple):
    """End the connection to a member, if there is one; what is asked next goes over a new one."""

    member: bytes


class Greet(NamedTuple):
    """Connect to whoever is at an address, and hear its view."""

    address: str
    until: float


class Pause(NamedTuple):
    """Wait for some time that chance gives, up to so many seconds."""

    seconds: float


ClientStep = Ask | Listen | Drop | Greet | Pause


class Value(NamedTuple):
    """The answer to a request."""

    value: Any
    now: float


class Failed(NamedTuple):
    """A member has refused, or could not do it."""

    code: str
    message: str
    fields: Mapping[str, Any]
    now: float


class Unreached(NamedTuple):
    """There is no connection; nothing was sent."""

    reason: str
    now: float


class Broke(NamedTuple):
    """The connection broke behind the request."""

    reason: str
    now: float


class Quiet(NamedTuple):
    """No answer yet."""

    now: float


class StepDone(NamedTuple):
    """Greeted, dropped, or paused."""

    now: float


ClientEvent = Value | Failed | Unreached | Broke | Quiet | StepDone

Steps = Generator[ClientStep, ClientEvent, T]

Tried = tuple[MemberView, ClientEvent]
"""Who was asked already, and what came of it."""


class AnswerLostError(Exception):
    """Whether a request that must not be sent twice has had its effect is not known."""

    def __init__(self, reason: str, now: float) -> None:
        super().__init__(reason)
        self.now = now


class AgainError(Exception):
    """A request had no effect; it may be made again under another id."""

    def __init__(self, reason: str, now: float, advice: str = "") -> None:
        super().__init__(reason)
        self.now = now
        self.advice = advice
        """What to do if that goes on."""


class SplitError(Exception):
    """The partitions of a request have more than one member by now; ``places`` tells them apart."""

    def __init__(self, places: Mapping[int, int]) -> None:
        super().__init__(f"{len(places)} partitions of several members")
        self.places = places


# ------------------------------------------------------------------ what is known


class Cluster:
    """What a client knows of its cluster; shared by all its connections."""

    def __init__(self, seeds: Sequence[str], cluster: bytes = b"") -> None:
        self.seeds = tuple(seeds)
        """Addresses that the user gave."""
        self.id = cluster
        """Empty until a member has told it, if nobody has before."""
        self.store = b""
        """The id of its store, which ids of transactions carry."""
        self.view: ClusterView | None = None
        self.decided = 0
        """How many decisions are known."""
        self.turn = 0
        """Which member is asked first by the next read that any copy may answer."""
        self._attempts: dict[bytes, int] = {}
        self.changed: Callable[[ClusterView], None] = lambda view: None
        """Called with each newer view, in the thread that has heard of it."""

    def __repr__(self) -> str:
        return f"<Cluster {self.id.hex() or 'not met'} decided={self.decided}>"

    def meet(self, cluster: bytes, store: bytes, fields: Sequence[Any]) -> None:
        """Take what a member says first."""
        self.id = self.id or cluster
        self.store = self.store or store
        self.learn(fields)

    def learn(self, fields: Sequence[Any]) -> None:
        """Take a view that arrived, if it is newer; ``FrameError`` if it cannot be right."""
        view = view_of(fields)
        if self.view is None or view.decided > self.view.decided:
            self.view = view
            self.decided = view.decided
            self.changed(view)

    def next_turn(self) -> int:
        """Return whose turn it is."""
        self.turn += 1
        return self.turn

    def next_attempt(self, tx_id: bytes) -> int:
        """Return the number of the next attempt under an id that was given."""
        return self._attempts.get(tx_id, 1)

    def refused(self, tx_id: bytes, attempt: int) -> int:
        """Note that an attempt was refused; return the number of the next one."""
        self._attempts[tx_id] = attempt + 1
        if len(self._attempts) > ATTEMPTS_KEPT_MAX:
            del self._attempts[next(iter(self._attempts))]
        return attempt + 1

    def address_of(self, member: bytes) -> str | None:
        """Return where a member can be reached; None if it has left the cluster."""
        members = () if self.view is None else self.view.members
        return next((known.address for known in members if known.id == member), None)


class Job(NamedTuple):
    """A request, before it is known who is asked."""

    partitions: Sequence[int]
    """What it is about; nothing if any member can answer."""
    operation: str
    arguments: Sequence[object]
    until: float
    once: bool = False
    """Whether sending it twice could have two effects."""
    patient: bool = False
    """Whether a member that is away is waited for."""
    named: Sequence[int] = ()
    """Partitions in whose present epochs alone it counts, which it names then (T2)."""

    def told(self, view: ClusterView) -> Sequence[object]:
        """Return what is sent, by the view that says whom it is sent to."""
        if not self.named:
            return self.arguments
        return *self.arguments, self.named, [view.epochs[one] for one in self.named]


class _Search:
    """What one call has met on its way."""

    def __init__(self, cluster: Cluster, until: float) -> None:
        self.cluster = cluster
        self.until = until
        self.pause = PAUSE_S
        self._asked: MemberView | None = None
        self.fresh = False
        """Whether a member has confirmed the view during this call, not known to be outdated."""
        self.minority = False
        """Whether that member reaches no majority, so that it cannot tell who is away."""
        self.reason = ""
        self.advice = ""
        """What to do about it, as the member said that has refused last."""
        self.greeted = ""
        """The address of who has confirmed it, if it had to be asked for."""
        self.tried: dict[str, str] = {}
        """Why nobody was reached at an address."""

    def asks(self, member: MemberView) -> None:
        """Begin with short pauses anew if it is somebody else that is asked, or waited for."""
        if member != self._asked:
            self._asked, self.pause = member, PAUSE_S

    def rested(self, now: float, most: float = PAUSE_S_MAX) -> Steps[None]:
        """Pause before the next attempt; raise if the time is over."""
        if now >= self.until:
            raise self.late()
        yield Pause(min(self.pause, most, self.until - now))
        self.pause *= 2

    def late(self) -> TidelogError:
        """Return the error for a call whose time is over, and that had no effect."""
        shown = list(self.tried.items())
        places = "; ".join(f"{place}: {why}" for place, why in shown[:TRIED_SHOWN_MAX])
        places += f"; and {len(shown) - TRIED_SHOWN_MAX} others" * (len(shown) > TRIED_SHOWN_MAX)
        if self.fresh and self.minority:
            return NotEnoughMembersError(
                "no majority of the members that vote is there to tell who serves this "
                f"({places or self.reason})"
            )
        if self.fresh or not self.tried:
            told = f": {self.reason}" if self.reason else ""
            return DeadlineError(
                f"no answer from the cluster within the time that was given{told}",
                hint=late_hint("look at the members", self.advice),
            )
        return NotEnoughMembersError(f"no member of the cluster was reached ({places})")

    def looked(self, now: float, avoided: bytes = b"", *, greet: bool = True) -> Steps[float]:
        """Ask others what is new; ``fresh`` tells whether anybody has answered.

        ``greet`` goes back to the addresses that the user gave, if nobody else does.  One of them
        may be that of a member by another name, whose older connection ends thereby.
        """
        self.fresh, self.minority, self.greeted = False, False, ""
        view = self.cluster.view
        members = () if view is None else view.members
        for member in members:
            if member.id == avoided or not member.present:
                continue
            event = yield Ask(member.id, "status", (), min(self.until, now + PATIENCE_S))
            now = event.now
            if isinstance(event, Value | Failed):
                self.fresh, self.minority = True, _lacks_majority(event)
                return now
            self._missed(member.address, event)
        known = {member.address for member in members if member.present or member.id == avoided}
        for address in self.cluster.seeds if greet else ():
            if address in known:
                continue
            event = yield Greet(address, self.until)
            now = event.now
            if isinstance(event, StepDone):
                self.fresh, self.greeted = True, address
                return now
            self._missed(address, event)
        return now

    def _missed(self, address: str, event: ClientEvent) -> None:
        missed = isinstance(event, Unreached | Broke)
        self.tried[address] = event.reason if missed else "no answer"  # type: ignore[union-attr]  # of both

    def failed(self, member: MemberView, event: Unreached | Broke) -> Steps[float]:
        """Ask others, since a member could not be asked."""
        self.tried[member.address] = event.reason
        self.reason = f"{member.address}: {event.reason}"
        return (yield from self.looked(event.now, member.id))


def served(cluster: Cluster, job: Job, first: Tried | None = None) -> Steps[Any]:
    """Return the answer to a request, whoever has it; ``first`` is an attempt that was made.

    Raises the error of the answer, ``PartitionUnavailableError``, ``NotEnoughMembersError`` or
    ``DeadlineError``; ``SplitError``; and for what may be sent only once ``AnswerLostError`` or
    ``AgainError``.
    """
    search = _Search(cluster, job.until)
    while True:
        if first is not None:
            (member, event), first = first, None
        else:
            if cluster.view is None:
                yield from _met(search)
            member = _chosen(cluster, job.partitions, search.tried)
            search.asks(member)
            if job.partitions and not member.present:
                yield from _awaited(search, job, member, cluster.view)
                continue
            assert cluster.view is not None
            event = yield Ask(member.id, job.operation, job.told(cluster.view), job.until)
        while type(event) is Quiet:
            event = yield from _heard_of(search, job, member, event.now)
        if type(event) is Value:
            return event.value
        if isinstance(event, Failed):
            search.fresh, search.minority = True, False
            search.reason, search.advice = event.message or event.code, advice_in(event.fields)
            if job.once and event.code == CommitUnknownError.code:
                raise AnswerLostError(search.reason, event.now)
            if event.code == AGAIN:
                raise AgainError(search.reason, event.now, search.advice)
            if event.code == NotEnoughMembersError.code:
                now = yield from search.looked(event.now, member.id)
                # Who has a majority will take over from a member that has none.
                told = not search.fresh or (search.minority and _still(cluster, job, member))
                if told and not job.patient:
                    raise told_error(event.code, event.message, event.fields)
            elif job.patient and event.code == PartitionUnavailableError.code:
                now = event.now
            elif event.code not in (REMAP, WAIT):
                raise told_error(event.code, event.message, event.fields)
            else:
                now = event.now
        else:
            assert isinstance(event, Unreached | Broke)
            if job.once and type(event) is Broke:
                raise AnswerLostError(event.reason, event.now)
            now = yield from search.failed(member, event)
            minority = search.fresh and search.minority and not job.patient
            if minority and job.partitions and _still(cluster, job, member):
                raise search.late()  # nobody can tell who serves this instead
        if _still(cluster, job, member):
            yield from search.rested(now)


def _met(search: _Search) -> Steps[None]:
    """Find the first member that answers."""
    while search.cluster.view is None:
        now = yield from search.looked(0.0)
        if search.cluster.view is None:
            yield from search.rested(now)


def _awaited(
    search: _Search, job: Job, member: MemberView, view: ClusterView | None
) -> Steps[None]:
    """Make sure that a member is away; raise then, or pause if it is waited for, or coming."""
    event = yield Pause(0.0)
    now = event.now
    if not search.fresh:
        now = yield from search.looked(now)  # itself, if need be: it may have come meanwhile
    if not _still(search.cluster, job, member):
        return
    is_coming = search.greeted == member.address or (
        view is not None and view.coming.issuperset(job.partitions)
    )
    if search.fresh and not job.patient and not is_coming:
        raise _unavailable(job, member, view)
    search.reason = f"the member at {member.address} is away"
    yield from search.rested(now, COMING_S_MAX if is_coming else PAUSE_S_MAX)
    search.fresh = False


def _heard_of(search: _Search, job: Job, member: MemberView, now: float) -> Steps[ClientEvent]:
    """Return what becomes of a request that is not answered: others are asked about its member."""
    if now < job.until:
        now = yield from search.looked(now, member.id, greet=False)
        if _still(search.cluster, job, member):
            return (yield Listen(member.id, job.until))
        reason = f"the member at {member.address} does not serve this any more"
    else:
        reason = f"no answer from the member at {member.address}"
    yield Drop(member.id)
    return Broke(reason, now)


def _chosen(cluster: Cluster, partitions: Sequence[int], tried: Mapping[str, str]) -> MemberView:
    view = cluster.view
    assert view is not None
    if partitions:
        return view.members[only_place({p: view.primaries[p] for p in partitions})]
    present = [member for member in view.members if member.present] or view.members
    return next((member for member in present if member.address not in tried), present[0])


def only_place(places: Mapping[int, int]) -> int:
    """Return the one member that a request goes to, by partition; ``SplitError`` if it is several.

    Members are places in the view.
    """
    found = set(places.values())
    if len(found) > 1:
        raise SplitError(places)
    return found.pop()


def _still(cluster: Cluster, job: Job, member: MemberView) -> bool:
    """Tell whether the newest view has the same member, in the same state, for a request."""
    view = cluster.view
    if view is None or not job.partitions:
        return True
    return all(view.serving(partition) == member for partition in job.partitions)


def _lacks_majority(event: Value | Failed) -> bool:
    """Tell whether a member has said in its status that it reaches no majority.

    One that has just started cannot know that yet.
    """
    status = event.value if type(event) is Value else None
    if not isinstance(status, dict) or status.get("just_started"):
        return False
    return status.get("majority") is False


def _unavailable(
    job: Job, member: MemberView, view: ClusterView | None
) -> PartitionUnavailableError:
    partition = min(job.partitions, default=0)
    if view is not None and partition in view.lost:
        return PartitionUnavailableError(
            f"partition {partition} is lost: the disks of all who had it are gone",
            partition=partition,
            hint="Let it go on from an older copy, or with nothing: `tidelog cluster reset`.",
        )
    if view is not None and job.partitions and len(view.copies[partition]) > 1:
        text = f"was served by the member at {member.address}, which is not there, and no other "
        text += "copy can take over yet"
    else:
        text = f"is served by the member at {member.address} alone, which is not there"
    return PartitionUnavailableError(f"partition {partition} {text}", partition=partition)


def is_there(cluster: Cluster, member: bytes, until: float, now: float) -> Steps[bool]:
    """Tell whether a member that says nothing is in the cluster still, as others have it."""
    yield from _Search(cluster, until).looked(now, member, greet=False)
    members = () if cluster.view is None else cluster.view.members
    return any(known.id == member and known.present for known in members)


def question(
    cluster: Cluster, tx_id: bytes, given: bool, home: int, until: float
) -> Steps[Outcome]:
    """Return what became of a transaction, as the server of its home tells it."""
    job = Job((home,), "outcome", (tx_id, given, home), until, patient=True)
    outcome: Outcome = yield from served(cluster, job)
    return outcome
