"""Carrying out a client's steps for the tasks of a loop: many requests on one connection.

All tasks of a client share one line: to each member there is one connection, made when it is first
needed.  A thread connects, and closes the connection at its end, whatever becomes of the loop;
everything else happens in the loop.

Invariants:

- A read that is cancelled is taken back: the member is told that nobody waits.  What may change
  something and was sent is waited for; its task learns the outcome, and is cancelled behind it.
- Sending never waits in the loop: what the system does not take at once a thread sends.
- Of what tasks send that were woken together a member gets the first at once, and the others with
  the last of them, the next ``BURST_S`` later, or the next turn of the loop: whatever is first.
- What a connection that has ended owed is told to every task that waited for it.
- Behind the end of a client nobody connects: who would have to is told so.
- No thread outlives its loop for long, or the end of its client.

Left out: what is asked of whom (``routing``).
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...affinity.errors import ClosedError
from ..aio.loops import Loop, never
from ..aio.waiting import Once
from ..net.failures import Failure
from ..net.frames import FrameError
from ..store.open_state import OpenState
from ..system.environment import Environment
from .dialogue import RESPONSE, Dialogue, NotWelcomeError
from .lines import GRACE_S, LineConnection, connected, reason_of
from .routing import (
    PATIENCE_S,
    Ask,
    Broke,
    ClientEvent,
    ClientStep,
    Cluster,
    Drop,
    Failed,
    Greet,
    Listen,
    Pause,
    Quiet,
    StepDone,
    Steps,
    Unreached,
    Value,
)

T = TypeVar("T")

TICK_S = 0.25
"""Seconds after which a connection that is silent looks for requests that have waited too long."""
BURST_S = 0.001
"""Seconds behind what a member was sent of a burst in which the others of it wait for more."""
LATE_S = 0.01
"""Seconds from which on a task that computes has had the requests of others wait too long."""
PER_LATE = 100
"""So many times as long as that took no request waits any more."""
TAKEN_BACK = frozenset(("get", "scan", "copy", "stale", "status", "outcome", "lock"))
"""Operations that change nothing; a lock goes with its transaction."""


class WaitingTask:
    """A task that waits for an answer."""

    def __init__(self, number: int, since: float, until: float) -> None:
        self.number = number
        self.until = until
        self.look_at = min(since + PATIENCE_S, until)
        self.event: ClientEvent | None = None
        self.sleeper: Any = None


class Burst:
    """What tasks send that one answer, or several, have woken: few writes for each connection.

    A member that hears ten requests at once takes them in one turn, and answers in one frame; so
    one burst makes the next.  Of a burst the first goes at once: its member works meanwhile.
    """

    def __init__(self, loop: Loop, now: Callable[[], float]) -> None:
        self.woken = 0
        """Tasks that were woken, and have not run since."""
        self._loop = loop
        self._now = now
        self._links: dict[Link, None] = {}
        """Connections that wait to be written to."""
        self._written: dict[Link, float] = {}
        """When what was written to in this burst was so the last time."""
        self._since = 0.0
        """When the first of them began to wait."""
        self._looked_at = 0.0
        """When the last request began to wait."""
        self._gathers_at = 0.0
        """Until then nothing waits."""
        self._end = loop.protected(self._ended)

    def wakes(self) -> None:
        """Note that a task was woken."""
        if not self.woken:
            self._written.clear()
        self.woken += 1

    def add(self, link: Link) -> None:
        """Have a connection written to: at once, or together with others that may come."""
        now = self._now()
        written = self._written.get(link, -BURST_S)
        if self.woken and self._gathers_at <= now < written + BURST_S:
            if not self._links:
                self._since = now
                self._loop.soon(self._end)
            self._links[link] = None
            self._looked_at = now
        else:
            self._links.pop(link, None)
            self._write(link)
            if not self.woken:
                self._flush()

    def ran(self) -> None:
        """Note that a task which was woken goes on."""
        self.woken -= 1
        if self._links:
            self._look()

    def _look(self) -> None:
        now = self._now()
        late = now - self._looked_at
        if late > LATE_S:
            self._gathers_at = now + PER_LATE * late
        if now >= self._since + BURST_S:
            self._flush()

    def _ended(self) -> None:
        if self._links:
            self._look()
            self._flush()

    def _flush(self) -> None:
        try:
            while self._links:
                self._write(self._links.popitem()[0])
        finally:
            if self._links:
                self._loop.soon(self._end)

    def _write(self, link: Link) -> None:
        self._written[link] = self._now()
        link.flush()


class Link:
    """One connection, from the attempt to make it to its end."""

    def __init__(
        self,
        loop: Loop,
        now: Callable[[], float],
        address: str,
        dialogue: Dialogue,
        left: float,
        burst: Burst,
    ) -> None:
        self.made = Once(loop)
        """Comes when the attempt to connect has ended."""
        self.ended = Once(loop)
        self.reason: str | None = None
        """Why it is not up; None while it is."""
        self.waiting: dict[int, WaitingTask] = {}
        self._loop = loop
        self._now = now
        self._address = address
        self._left = left
        self._dialogue = dialogue
        self._connection: LineConnection | None = None
        self._over = allocate_lock()
        """Held until nothing more is received."""
        self._over.acquire()
        self._ended_by = "what it received was interrupted"
        """Why, if nothing else was the reason: Ctrl-C, or the end of the loop."""
        self._burst = burst
        self.send = loop.protected(self._send)
        self._sleep = loop.protected(self._slept)
        self._gathered: list[bytes] = []
        """What waits for more of a burst."""
        self._unsent: deque[bytes] = deque()
        """What the system did not take."""
        self._sending = False
        self._closed = False
        self._begin()

    @property
    def member(self) -> bytes:
        """Who is at the other end."""
        return self._dialogue.member

    # -------------------------------------------------------------- in a thread

    def _begin(self) -> None:
        self._loop.start(self._live)

    def _live(self) -> None:
        """Connect, and see to the connection until its end, or that of the loop."""
        try:
            connection = connected(self._address, self._dialogue, self._left)
        except (OSError, ValueError, FrameError, NotWelcomeError) as error:
            self._loop.soon(self._not_made, reason_of(error))
            return
        try:
            if self._loop.soon(self._is_made, connection):
                while not self._over.acquire(timeout=TICK_S) and not self._loop.has_ended():
                    if self.waiting:
                        self._loop.soon(self._look)
        finally:
            connection.close()
            self._loop.soon(self._end, self._ended_by)

    def _send_rest(self) -> None:
        """Send what the system did not take at once."""
        connection = self._connection
        assert connection is not None, "it is made"
        try:
            while self._unsent:
                connection.send(self._unsent[0])
                self._unsent.popleft()
        except OSError as error:
            self._loop.soon(self.close, reason_of(error))
            connection.shut()  # before anything else is sent: it may have sent a part of a frame
            self._unsent.clear()
        self._loop.soon(self._sent)

    # -------------------------------------------------------------- in the loop

    def _is_made(self, connection: LineConnection) -> None:
        self._connection = connection
        self._loop.watch(connection.number, self._readable, self._over.release)
        if self._closed:
            connection.shut()
        self.made.come()

    def _not_made(self, reason: str) -> None:
        self.reason = reason
        self.made.come()
        self.ended.come()

    def _readable(self) -> bool:
        """Take what has arrived; tell whether more may come."""
        assert self._connection is not None
        try:
            self._arrived(self._connection.receive_now())
        except BlockingIOError:
            return True
        except OSError as error:
            self._ended_by = reason_of(error)
            return False
        return not self._closed

    def _arrived(self, data: bytes) -> None:
        try:
            answers = self._dialogue.feed(data)
        except FrameError as error:
            self.close(str(error))
            return
        now = self._now()
        for answer in answers:
            waiting = self.waiting.pop(answer[1], None)
            if waiting is None:
                continue
            if answer[0] == RESPONSE:
                self._tell(waiting, Value(answer[2], now))
            else:
                self._tell(waiting, Failed(*Failure(*answer[2:5]), now))
        self._look()

    def _look(self) -> None:
        now = self._now()
        for waiting in list(self.waiting.values()):
            if now >= waiting.look_at:
                waiting.look_at = now + PATIENCE_S
                self._tell(waiting, Quiet(now))

    def _tell(self, waiting: WaitingTask, event: ClientEvent) -> None:
        waiting.event = event
        sleeper, waiting.sleeper = waiting.sleeper, None
        if sleeper is not None:
            self._burst.wakes()
            self._loop.wake(sleeper)

    def _sent(self) -> None:
        self._sending = False
        if self._unsent:
            self._send_later()

    def _send_later(self) -> None:
        if not self._sending:
            try:
                self._loop.start(self._send_rest)
            except RuntimeError as error:  # the system gives no more threads
                self._unsent.clear()
                self.close(str(error))
            else:
                self._sending = True

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        now = self._now()
        while self.waiting:
            _, waiting = self.waiting.popitem()
            self._tell(waiting, Broke(self.reason, now))
        self.made.come()
        self.ended.come()

    def _send(self, data: bytes) -> None:
        """Send bytes, or have them sent."""
        self._gathered.append(data)
        self._burst.add(self)

    def flush(self) -> None:
        """Send what waits for more of a burst."""
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._write(data)

    def _write(self, data: bytes) -> None:
        connection = self._connection
        assert connection is not None, "it is made"
        if not self._unsent:
            data = data[connection.send_now(data) :]
        if data:
            self._unsent.append(data)
            self._send_later()

    def ask(self, operation: str, arguments: Sequence[object], until: float) -> WaitingTask:
        """Send a request; ``UsageError`` if it is too large."""
        now = self._now()
        left_us = max(int((until - now) * 1_000_000), 0)
        number, data = self._dialogue.request(operation, arguments, left_us)
        waiting = self.waiting[number] = WaitingTask(number, now, until + GRACE_S)
        self.send(data)
        return waiting

    def tell(self, operation: str, arguments: Sequence[object]) -> None:
        """Send a request whose answer nobody waits for, if it is up."""
        if self.reason is None and self._dialogue.welcome:
            self.send(self._dialogue.request(operation, arguments, 0)[1])

    async def answer(self, waiting: WaitingTask, *, taken_back: bool) -> ClientEvent:
        """Sleep until there is an answer, or nothing for a while."""
        if waiting.event is None:
            if self.reason is not None and waiting.number not in self.waiting:
                return Broke(self.reason, self._now())
            await self._sleep(waiting, taken_back)
        event, waiting.event = waiting.event, None
        assert event is not None
        return event

    async def _slept(self, waiting: WaitingTask, taken_back: bool) -> None:
        waiting.sleeper = sleeper = self._loop.sleeper()
        try:
            if taken_back:
                await self._loop.wait(sleeper, self._take_back, waiting)
            else:
                await self._loop.wait(sleeper, never)
        finally:
            if waiting.sleeper is None:
                self._burst.ran()

    def _take_back(self, waiting: WaitingTask) -> bool:
        if waiting.event is not None:
            return False
        if self.waiting.pop(waiting.number, None) is not None and self.reason is None:
            self.send(self._dialogue.cancel(waiting.number))
        return True

    def close(self, reason: str = "the connection was closed") -> None:
        """End it; who waits for an answer hears so."""
        self.reason = self.reason or reason
        self._closed = True
        if self._connection is not None:
            self._connection.shut()

    def leave(self) -> None:
        """In the child of a fork: let go of it, and leave it to the parent."""
        if self._connection is not None:
            self._connection.close()


class LoopLinks:
    """The connections of one client; used in one loop."""

    def __init__(
        self,
        cluster: Cluster,
        environment: Environment,
        loop: Loop,
        open_state: OpenState,
        timeout: float,
    ) -> None:
        self._cluster = cluster
        self._loop = loop
        self._open_state = open_state
        self._now = environment.monotonic
        self._uniform = environment.random.uniform
        self._id = environment.new_id()
        self._number = 0
        self._links: dict[bytes, Link] = {}
        self._making: dict[str, Link] = {}
        self._all: list[Link] = []
        self._burst = Burst(loop, self._now)
        self.timeout = timeout
        """Seconds that a call may take."""

    def until(self) -> float:
        """Return when a call that begins now has to end."""
        return self._now() + self.timeout

    async def carry(self, steps: Steps[T]) -> T:
        """Carry out steps to their end, and return the result."""
        asked: dict[bytes, tuple[Link, WaitingTask, bool]] = {}
        try:
            step = next(steps)
            while True:
                closed = None
                try:
                    event = await self._event(step, asked)
                except ClosedError as error:
                    closed = error
                step = steps.throw(closed) if closed else steps.send(event)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            for link, waiting, _ in asked.values():
                link.waiting.pop(waiting.number, None)

    async def _event(
        self, step: ClientStep, asked: dict[bytes, tuple[Link, WaitingTask, bool]]
    ) -> ClientEvent:
        match step:
            case Ask(member, operation, arguments, until):
                link = self._links.get(member)
                if link is None or link.reason is not None:
                    address = self._cluster.address_of(member)
                    if address is None:
                        return Unreached("it has left the cluster", self._now())
                    link = await self._linked(address, member, until)
                if link.reason is not None:
                    return Unreached(link.reason, self._now())
                asked[member] = (
                    link,
                    link.ask(operation, arguments, until),
                    operation in TAKEN_BACK,
                )
                return await self._answer(asked[member])
            case Listen(member):
                return await self._answer(asked[member])
            case Drop(member):
                link = self._links.pop(member, None)
                if link is not None:
                    link.close()
            case Greet(address, until):
                link = await self._linked(address, None, until)
                if link.reason is not None:
                    return Unreached(link.reason, self._now())
            case Pause(seconds):
                if seconds:
                    await self._loop.sleep(self._uniform(0.0, seconds))
        return StepDone(self._now())

    def tell(self, member: bytes, operation: str, arguments: Sequence[object]) -> None:
        """Send a request to a member, if it is connected, and wait for no answer."""
        link = self._links.get(member)
        if link is not None:
            link.tell(operation, arguments)

    async def _answer(self, asked: tuple[Link, WaitingTask, bool]) -> ClientEvent:
        link, waiting, taken_back = asked
        return await link.answer(waiting, taken_back=taken_back)

    async def _linked(self, address: str, member: bytes | None, until: float) -> Link:
        """Return a connection that is up, or one that tells why it is not; shared by who waits.

        ``ClosedError`` if the client is closed.
        """
        self._open_state.check()
        link = self._making.get(address)
        if link is None:
            self._number += 1
            dialogue = Dialogue(self._cluster, self._id, self._number, member)
            left = until - self._now()
            link = self._making[address] = self._begun(address, dialogue, left)
            self._all.append(link)
        await link.made.wait()
        if self._making.get(address) is link:
            del self._making[address]
            self._all = [one for one in self._all if one.reason is None]
            if link.reason is None:
                old = self._links.get(link.member)
                self._links[link.member] = link
                if old is not None:
                    old.close()
        return link

    def _begun(self, address: str, dialogue: Dialogue, left: float) -> Link:
        return Link(self._loop, self._now, address, dialogue, left, self._burst)

    async def close(self) -> None:
        """End all connections of a client that is closed, and wait for that."""
        for link in list(self._all):
            link.close()
        for link in list(self._all):
            await link.ended.wait()

    def leave(self) -> None:
        """In the child of a fork: leave the connections to the parent."""
        for link in list(self._all):
            link.leave()
