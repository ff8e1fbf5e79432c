"""Carries groups of commits into the log and the overlay, and sees interrupted ones through.

One thread leads at a time; what it does here is the same for a group that was queued and for one
that a thread brings when it is alone:

=========== ========= ============================================================ ==============
            mutex     what happens                                                 the group then
=========== ========= ============================================================ ==============
``_write``  held      checked, numbered, encoded; one frame appended               ``logged``
``_land``   free      synced, if any of its entries asked for that
``_land``   held      overlay and counters take it                                 ``applied``
``_land``   held      the next leader is named, threads are lined up to be woken   ``ended``
=========== ========= ============================================================ ==============

An exception before the frame is whole ends the group without effect (``_give_up``), one from the
sync with an unknown outcome (``_fail_landing``).  Any other one comes from a signal; the group is
then an *orphan*, and whoever takes the mutex next carries on where it stands (``check_whole``).

Left out: who may lead, and who waits (``committer``, ``queue``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from operator import length_hint

from ...affinity.errors import RolledBackError
from ...wal.writer import LogFailedError
from .commit_log import CommitLog, of_the_disk
from .context import A_COMMIT, CommitContext
from .entries import Entry
from .group import Group, Queued
from .queue import CommitQueue

log = logging.getLogger("tidelog.store")


class Carrier:
    """Carries one group at a time."""

    def __init__(
        self,
        context: CommitContext,
        queue: CommitQueue,
        end_of_log: CommitLog,
        *,
        mutex: threading.Lock,
        clock: Callable[[], int],
    ) -> None:
        self.mutex = mutex
        self.context = context
        self.queue = queue
        self.end_of_log = end_of_log
        self.group: Group | None = None
        """The group on its way, from the moment it is taken until it has ended."""
        self.orphan: Group | None = None
        """A group whose leader went away before its end."""
        self.in_flight: Sequence[Entry] = ()
        """The entries of the group on its way that are, or may be, in the log."""
        self.grouped = 0
        self.groups = 0
        """Transactions that went into the log in groups, and those groups."""
        self._clock = clock
        self._writer = end_of_log.writer

    # -------------------------------------------------------------- the way of a group

    def carry(self, taken: Sequence[Entry], own: Queued | None = None) -> Group | None:
        """Carry a group into log and overlay, and pass the lead on; return it.

        It is what a thread has brought, or, if ``own`` is what that thread has queued, what it
        finds in the queue.  None, and nothing done, if nobody queued it and others are about.
        Little is called from here: between two syncs all code runs from cold caches.
        """
        context, queue, writer, group = self.context, self.queue, self._writer, Group()
        group.taken, group.own = taken, own
        try:
            with self.mutex:
                if context.changing is not None or self.orphan is not None or queue.abandoned:
                    self.check_whole()
                # The lead is taken, the group known and the change announced in one statement: an
                # interrupt finds either nothing begun, or all that it takes to see it through.
                after = context.standing.after
                if own is not None:
                    queue.next_leader, self.group, context.changing, context.standing = (
                        None, group, A_COMMIT, after["begin"],
                    )  # fmt: skip
                elif context.standing.busy or length_hint(queue.chain.left):
                    return None
                else:
                    self.group, context.changing, context.standing = (
                        group, A_COMMIT, after["lead"],
                    )  # fmt: skip
                try:
                    if own is not None:
                        queue.take(group)
                    self._write(group)
                except BaseException as error:
                    # Nobody else has seen anything of it yet: the mutex is still held.
                    group.cause = error
                    self._give_up(group, error)
                    context.changing = None
                    if group.ended and of_the_disk(error):
                        return group
                    raise
                group.logged, context.changing = True, None
            # Without the mutex from here on, but nobody appends while this group is on its way.
            self._land(group)
        except BaseException as error:
            # The handler of a signal may raise an OSError, too: TimeoutError is one.
            if writer.failure is not None and isinstance(error, (OSError, LogFailedError)):
                self._fail_landing(group, error)
            else:
                # It is in the log, or nobody knows: it must take effect before anybody reads what
                # it wrote, else a reader would see less than the next open.
                if self.group is group:
                    self.orphan, context.overlay.applying = group, True
                    self.wait_applied()
                raise
        finally:
            if self.group is group:
                # Interrupted once more: whoever takes the mutex next sees to it, and readers look
                # there first.
                self.orphan, context.overlay.applying = group, True
        return group

    def _write(self, group: Group) -> None:
        """Check the entries of a group, number them, and append their records as one frame."""
        context, state = self.context, self.context.state
        passed: list[Entry] = []
        time = self._clock()
        if time < state.time:
            time = state.time
        context.ids.first_in_flight = context.ids.last + 1
        group.passed = passed
        records = []
        for entry in group.taken:
            record = entry.prepare(context, passed, time)
            if record is not None:
                passed.append(entry)
                records.append(record)
        if records:
            state.time = time
            self.end_of_log.frame_at = self._writer.position
            self.in_flight = passed
            payload = records[0] if len(records) == 1 else b"".join(records)
            # As a rule there is no gap to close, and room in the segment: straight to the writer.
            if payload and (self.end_of_log.gaps or not self._writer.append(payload)):
                self.end_of_log.append(payload)

    def _land(self, group: Group) -> None:
        """Sync what was logged, if anybody asked for that, and let it take effect."""
        for entry in group.passed:
            if entry.durable:
                self.end_of_log.sync(self._writer.position)
                break
        with self.mutex:
            self.context.changing = A_COMMIT
            try:
                self._take_effect(group)
            except BaseException:
                # Before the mutex is given up: nobody may see half of it.
                self._take_effect(group)
                self.context.changing = None
                raise
            self.context.changing = None

    def _take_effect(self, group: Group) -> None:
        """Apply what has passed, and end the group; done twice it does the same."""
        passed, end, context = group.passed, self._writer.position, self.context
        if passed and not group.applied:
            overlay, count = context.overlay, 0
            overlay.applying = True
            try:
                for entry in passed:
                    entry.apply(context, end)
                    count += entry.count
            finally:
                overlay.changes += 1
                overlay.applying = False
            context.applied_position = end
            self.grouped += count
            self.groups += 1
        group.applied = True
        self._end_group(group)

    def _end_group(self, group: Group) -> None:
        """Pass the lead on, and wake those whose outcome is known; done twice it does the same."""
        self.in_flight = ()
        self.queue.end(group)
        self.group = None  # behind all of the above: until then it can be done again

    # -------------------------------------------------------------- groups that fail

    def _give_up(self, group: Group, error: BaseException) -> None:
        """End a group that did not reach the log; leave alone one that did; under the mutex."""
        self._writer.make_whole()
        if self.in_flight and self.end_of_log.has_frame():
            self.end_of_log.close_gaps()  # its frame may have closed some
            group.logged = True
            return
        if group.own is not None:
            group.take()  # it may have come no further
        failed = of_the_disk(error)
        shared = self.end_of_log.append_error(error) if failed else _for_others(error)
        self._fail(group.passed, error if failed else shared)
        for entry in group.taken:
            entry.error = entry.error or shared
        self._end_group(group)

    def _fail_landing(self, group: Group, error: BaseException) -> None:
        """End a group whose sync failed."""
        with self.mutex:
            self.context.changing = A_COMMIT
            self._fail(group.passed, error)
            self._end_group(group)
            self.context.changing = None

    def _fail(self, group: Sequence[Entry], error: BaseException) -> None:
        """Nothing of the group took effect in memory; say whether it may be on disk."""
        if self._writer.failure is None:
            for entry in group:
                entry.fail(self.end_of_log.append_error(error))
            self.end_of_log.leave_gaps()
        else:
            cause = self.end_of_log.failed(self._writer.failure)
            for entry in group:
                entry.unknown(cause)

    # -------------------------------------------------------------- behind an interrupt

    def check_whole(self) -> None:
        """See to what an earlier holder of the mutex left undone when it was interrupted.

        What it queued is taken back, a commit that is in the log takes effect, another one is
        rolled back; after anything else nothing is written any more.  Called by whoever has just
        taken the mutex: a second interrupt may keep the first one's thread from all of that.
        """
        context, queue = self.context, self.queue
        if context.changing is None and self.orphan is None and not queue.abandoned:
            return
        queue.withdraw_abandoned()
        if (context.changing is None and self.orphan is None) or self._mended():
            return
        what, group = context.changing or A_COMMIT, self.orphan
        reason = f"a thread was interrupted in the middle of a change of {what}"
        context.stop("break", reason)
        if group is not None and not group.ended:
            self._fail_orphan(group)
        elif group is not None:
            self._end_group(group)
        context.cut_put = self.orphan = context.changing = None
        context.overlay.applying = False
        log.error("store.interrupted what=%s", what, extra={"event": "store.interrupted"})

    def check_writable(self) -> None:
        """Raise if the store stopped in the middle of a change; under the mutex."""
        self.check_whole()
        if self.context.standing.broken:
            raise self.context.refusal()

    def wait_applied(self) -> None:
        """Wait until no commit is being applied, and see to one that was interrupted."""
        with self.mutex:
            self.check_whole()

    def _mended(self) -> bool:
        """See an interrupted commit through to one of its ends; False if that fails, too."""
        context, group = self.context, self.orphan
        if group is None and context.cut_put is None:
            return False
        if context.changing not in (None, A_COMMIT):
            return False
        try:
            if group is not None:
                self._mend(group)
            else:
                self._mend_put()
        except Exception:
            if self._writer.failure is not None:
                self.end_of_log.failed(self._writer.failure)
            return False
        context.cut_put = self.orphan = context.changing = None
        context.overlay.applying = False
        return True

    def _mend(self, group: Group) -> None:
        """Carry a group on from where its leader left it, whatever its leader was about to do."""
        if not group.logged and not group.ended:
            # Its frame may be there, whole or in part: `_give_up` writes it whole, and then leaves
            # the group logged.  If it was not begun the group ends here, without effect.
            self._give_up(group, group.cause or KeyboardInterrupt())
        if group.ended:  # of those who wait not all may have been woken
            self._end_group(group)
            return
        if any(entry.durable for entry in group.passed):
            self.end_of_log.sync(self._writer.position)
        self._take_effect(group)

    def _mend_put(self) -> None:
        """Let a relaxed put take effect if its frame is in the log."""
        assert self.context.cut_put is not None
        before, take_effect, what = self.context.cut_put
        self._writer.make_whole()
        if self._writer.position != before:
            take_effect(*what)

    def _fail_orphan(self, group: Group) -> None:
        """Answer those whose leader went away, and let somebody else lead."""
        cause = self.context.refusal()
        logged = bool(self.in_flight) and (self.end_of_log.has_frame() or self._writer.in_doubt)
        for entry in group.taken:
            if entry in group.passed and logged:
                entry.unknown(cause)
            else:
                entry.fail(cause)
        self._end_group(group)


def _for_others(error: BaseException) -> BaseException:
    """Return what the others of a group hear of an error in the thread that led it."""
    if isinstance(error, Exception) and not isinstance(error, OSError):
        return error
    return RolledBackError(f"the thread that wrote it with others was interrupted: {error!r}")
