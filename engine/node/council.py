"""The driver of the agreement: the only one who does what its ``Ready`` says.

    note, send, sync in a thread of its own, send what waited for the sync, go on

Invariants:

- Nothing that rests on a note leaves before the note is durable.
- What was decided is told to the member only once it is durable here: a seal (K2).
- Time is a clock that goes on during suspend (L1); Trio's own clock only wakes.

Left out: decisions (``agreement.machine``), connections (``net.transport``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

import trio

from ...affinity.changes import TopologyChange
from ...affinity.errors import TidelogError, UsageError
from ...affinity.folding import ChangeError
from ...affinity.topology import Topology
from ..agreement.journal import Journal
from ..agreement.journal_format import SnapshotRecord
from ..agreement.machine import Agreement, Outgoing, Ready
from ..agreement.messages import ChangeRefused, Guard, Join
from ..agreement.noting import noted_records, snapshot_of
from ..agreement.wire import envelope_of, message_of
from ..net.addresses import address_of
from ..net.connection import Connection
from ..net.frames import FrameError, Message
from ..net.kinds import CONTROL
from ..net.transport import Transport
from ..system.environment import Environment

ASK_AGAIN_S = 0.5
"""Seconds after which a change that nobody has decided is asked for again."""
SHORTEN_AGAIN_S = 5.0
"""Seconds after which a journal for whose snapshot there was no space is shortened again."""
WAIT_S_MIN, WAIT_S_MAX = 0.001, 60.0
"""Seconds between two ticks; clocks differ in their last digits, and so must not be met exactly."""


class Council:
    """What one incarnation says to the others about who is there and who serves what."""

    def __init__(
        self,
        environment: Environment,
        agreement: Agreement,
        journal: Journal,
        transport: Transport,
        *,
        changed: Callable[[Topology], None],
        refused: Callable[[int, str], None] = lambda _request, _reason: None,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """``refused`` hears of what was suggested and is not made.

        ``looked`` is called when all that has come is worked off, and at each tick.
        """
        self.agreement = agreement
        self._environment = environment
        self._journal = journal
        self._transport = transport
        self._changed = changed
        self._refused = refused
        self._looked = looked
        self._accepted = agreement.voter.accepted
        self._told = -1
        self._followed = False
        """Whether another member led when this one last looked."""
        self._not_before = float("-inf")
        self._wake = trio.Event()
        self._refusals: dict[int, ChangeRefused] = {}
        self._requests = 0
        self._waiting: dict[int, trio.Event] = {}

    @property
    def now(self) -> float:
        """The time of leases."""
        return self._environment.boottime()

    # -------------------------------------------------------------- what arrives

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Take what another member says, in order."""
        for message in messages:
            envelope = envelope_of(connection.other, connection.decided, message)
            if isinstance(envelope.message, Join):
                _check_address(envelope.message)
            try:
                self.agreement.step(envelope, self.now)
            except ChangeError as error:
                raise FrameError(f"a decision that does not follow on ours: {error}") from None
            finally:
                self._wake.set()

    def unreachable(self, member: UUID) -> None:
        """Hear that nothing listens where a member was."""
        self.agreement.unreachable(member)
        self._wake.set()

    def refused(self, reason: str) -> None:
        """Hear that the cluster knows another disk of this member."""
        self.agreement.refused(reason)
        self._wake.set()

    # -------------------------------------------------------------- what is asked for

    async def propose(
        self, change: TopologyChange, guards: tuple[Guard, ...] = (), after: int | None = None
    ) -> ChangeRefused:
        """Ask for a change until it is refused, or decided.

        Whether it is decided is for the caller to see: it cancels this then.  A change of maps is
        made from those behind the decision ``after``, or refused.
        """
        self._requests += 1
        request = self._requests
        refused = self._waiting[request] = trio.Event()
        try:
            while not refused.is_set():
                self.agreement.propose(request, change, guards, after)
                self._wake.set()
                with trio.move_on_after(ASK_AGAIN_S):
                    await refused.wait()
            return self._refusals.pop(request)
        finally:
            del self._waiting[request]
            self._refusals.pop(request, None)

    @property
    def is_led(self) -> bool:
        """Whether somebody is known to lead, who hears what is suggested."""
        return self.agreement.coordinator.number > 0

    def suggest(self, change: TopologyChange, guards: tuple[Guard, ...] = ()) -> int:
        """Ask for a change once, and return the number of the request."""
        self._requests += 1
        self.agreement.propose(self._requests, change, guards)
        self._wake.set()
        return self._requests

    def release(self, partitions: list[int], target: UUID | None = None) -> None:
        """Serve some partitions no more in their epochs; ``target`` shall, if it is listed."""
        for partition in partitions:
            self.agreement.release(partition, target)
        self._wake.set()

    # -------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Do what the agreement says, until cancelled."""
        self._tell()
        while True:
            self.agreement.tick(self.now)
            while (ready := self.agreement.ready()) is not None:
                await self._execute(ready)
                self._tell()
            self._tell()
            self._find_dead()
            self._looked()
            if self._journal.wants_snapshot:
                await self._shorten()
            wait = self.agreement.next_tick() - self.now
            with trio.move_on_after(min(max(wait, WAIT_S_MIN), WAIT_S_MAX)):
                await self._wake.wait()
            self._wake = trio.Event()

    def _find_dead(self) -> None:
        """See at once, when this member leads in place of another, at whose address nobody listens.

        That was seen before, maybe, and meant nothing then; the next look could be a second away.
        """
        if self.agreement.leads and self._followed:
            self._transport.try_anew()
        self._followed = self.is_led and not self.agreement.leads

    async def _shorten(self) -> None:
        """Begin the journal anew; if there is no space for that, the old one goes on for now."""
        if self.now < self._not_before:
            return
        snapshot = snapshot_of(self.agreement.topology)
        try:
            await self._environment.run("sync", partial(self._begin_again, snapshot))
        except TidelogError:
            if self._journal.failed:
                raise
            self._not_before = self.now + SHORTEN_AGAIN_S

    async def _execute(self, ready: Ready) -> None:
        written = noted_records(ready.notes, self._accepted)
        self._accepted = written.accepted
        run = self._environment.run
        if written.snapshot is not None:
            await run("sync", partial(self._begin_again, written.snapshot))
        if written.records:
            self._journal.append(written.records)
        self._send(ready.send)
        if written.records:
            await run("sync", self._journal.sync)
            self._environment.reached("config.after_accept")
        self._send(ready.send_durable)
        for refusal in ready.refused:
            self._take_refusal(refusal)
        self.agreement.advance(self.now)

    def _begin_again(self, snapshot: SnapshotRecord) -> None:
        self._journal.snapshot(snapshot.index, snapshot.term, snapshot.data, ())

    def _send(self, outgoing: tuple[Outgoing, ...]) -> None:
        for one in outgoing:
            self._transport.decided = max(self._transport.decided, one.envelope.decided)
            self._transport.send(one.target.bytes, CONTROL, message_of(one.envelope.message))

    def _take_refusal(self, refusal: ChangeRefused) -> None:
        waiting = self._waiting.get(refusal.request)
        if waiting is None:
            self._refused(refusal.request, refusal.reason)
        else:
            self._refusals[refusal.request] = refusal
            waiting.set()

    def links_changed(self) -> None:
        """Tell the agreement with whom data goes both ways now (I3)."""
        reached = (UUID(bytes=member) for member in self._transport.reached())
        self.agreement.reaches = frozenset(reached)

    def _tell(self) -> None:
        agreement = self.agreement
        topology = agreement.topology
        if topology.index != self._told or agreement.gone or agreement.refusal is not None:
            self._told = topology.index
            self._transport.decided = topology.index
            self._environment.reached("config.after_decide")
            self._changed(topology)


def _check_address(join: Join) -> None:
    """Raise ``FrameError`` for an address that nobody could connect to, were it decided."""
    try:
        address_of(join.address)
    except UsageError as error:
        raise FrameError(f"join: {error}") from None
