"""Where the commit path stands: who leads, what the store still takes, what else is in the way.

It is one value, a ``Standing``, that never changes: whoever holds the commit mutex puts another one
in its place, in one statement.  Which one follows on which *step* is in the tables below, and
nowhere else; a step that they do not have raises ``IllegalStepError`` and changes nothing.

Four things are in one value because one question asks for all of them: may a relaxed put go
straight into the log?  ``must_queue`` is the answer, and it is worked out here only.

Invariants:

- There are ``len(Lead) * len(Life) * 2 * 2`` standings, made once: ``is`` compares them.
- A step is a look into a dict: 20 ns more than a flag.  No signal comes between that and the
  stores of its statement.
- A store that has stopped never goes on: no step leads from ``CLOSED``, ``FAILED``, ``BROKEN`` or
  ``FORKED`` back to ``OPEN``.

Left out: why the store has stopped (``CommitContext.reason``), who the next leader is (``queue``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import Literal, NoReturn


class Lead(Enum):
    """Who leads, that is, carries a group into the log."""

    IDLE = "idle"
    """Nobody; whoever comes leads at once."""
    NAMED = "named"
    """The thread of the first one in the queue is to lead, and has not begun yet."""
    LEADING = "leading"
    """A group is on its way."""


class Life(Enum):
    """What the store takes, from its opening to its end."""

    RECOVERING = "recovering"
    """The records of the opening itself; nobody else has the store yet."""
    FRESH = "fresh"
    """Everything; something has to begin before the first commit."""
    OPEN = "open"
    """Everything."""
    ENDING = "ending"
    """Everything, but no put past the queue: soon nothing may be on its way any more."""
    CLOSED = "closed"
    """Nothing more: it has ended."""
    FAILED = "failed"
    """Nothing more: a sync failed, so that nobody knows what is on the disk."""
    BROKEN = "broken"
    """Nothing more: a thread went away halfway through a change of what is in memory."""
    FORKED = "forked"
    """Nothing more: this is the child of a fork, and the store is its parent's."""


LeadStep = Literal["lead", "name", "begin", "rename", "withdraw", "hand on", "rest"]

LEADS: Mapping[tuple[Lead, LeadStep], Lead] = {
    # A: a thread finds nobody about, and carries what it has brought, unqueued.
    (Lead.IDLE, "lead"): Lead.LEADING,
    # B: a thread queues while those of the last group are still being woken, but nobody leads.
    (Lead.IDLE, "name"): Lead.NAMED,
    # C: the thread of the next leader has been woken, and takes what is queued.
    (Lead.NAMED, "begin"): Lead.LEADING,
    # D: the next leader was interrupted and took back what it had queued; another one is named.
    (Lead.NAMED, "rename"): Lead.NAMED,
    # E: as D, and nothing else is queued.
    (Lead.NAMED, "withdraw"): Lead.IDLE,
    # F: a group has ended, and others have queued meanwhile.
    (Lead.LEADING, "hand on"): Lead.NAMED,
    # G: a group has ended, and nobody has queued.
    (Lead.LEADING, "rest"): Lead.IDLE,
}

LifeStep = Literal["serve", "commence", "end", "close", "fail", "break", "fork"]

_WORKING = (Life.RECOVERING, Life.FRESH, Life.OPEN, Life.ENDING)
_STOPPED = (Life.CLOSED, Life.FAILED, Life.BROKEN, Life.FORKED)

LIVES: Mapping[tuple[Life, LifeStep], Life] = {
    # H: the opening is done; users get the store.
    (Life.RECOVERING, "serve"): Life.FRESH,
    # I: the first commit has come, and what has to begin before it has begun.  Two first ones may
    # come at once, and a close, a failed sync or an interrupt may come before either of them.
    (Life.FRESH, "commence"): Life.OPEN,
    **{(life, "commence"): life for life in Life if life not in (Life.RECOVERING, Life.FRESH)},
    # J: a close has begun.  Again if one that was interrupted begins once more.
    **{(life, "end"): Life.ENDING for life in _WORKING},
    **{(life, "end"): life for life in _STOPPED},
    # K: nothing is taken any more.  What had stopped before says still why.
    **{(life, "close"): Life.CLOSED for life in _WORKING},
    **{(life, "close"): life for life in _STOPPED},
    # L: a sync of the log failed.
    **{(life, "fail"): Life.FAILED for life in _WORKING},
    **{(life, "fail"): life for life in _STOPPED},
    # M: a thread went away halfway, and what it left could not be made good.
    **{(life, "break"): Life.BROKEN for life in Life if life is not Life.FORKED},
    (Life.FORKED, "break"): Life.FORKED,
    # N: this process is the child of a fork.  Whoever led is not in it.
    **{(life, "fork"): Life.FORKED for life in Life},
}

Step = Literal[LeadStep, LifeStep, "lock", "unlock", "leave gaps", "close gaps"]


class IllegalStepError(Exception):
    """A step that is not in the tables: a mistake in the commit path itself."""


class Standing:
    """One of all there are; ``after`` has the ones that follow, by step.

    ``locks``: somebody holds a lock of a pessimistic transaction.  ``gaps``: a group failed, and
    no record in the log has closed its numbers yet.
    """

    __slots__ = (
        "after", "broken", "busy", "fresh", "gaps", "lead", "life", "locks", "must_queue",
        "stopped", "watched",
    )  # fmt: skip

    def __init__(self, lead: Lead, life: Life, locks: bool, gaps: bool) -> None:
        self.lead = lead
        self.life = life
        self.locks = locks
        self.gaps = gaps
        self.busy = lead is not Lead.IDLE
        """Whether somebody leads, or is to."""
        self.fresh = life in (Life.RECOVERING, Life.FRESH)
        """Whether no user has committed anything yet."""
        self.stopped = life in _STOPPED
        """Whether nothing is written any more."""
        self.broken = life is Life.BROKEN
        """Whether memory may be other than the log."""
        self.watched = self.stopped or locks
        """Whether a commit has to look closer before it may have a number."""
        self.must_queue = self.busy or life is not Life.OPEN or locks or gaps
        """Whether a relaxed update has to go through the queue like any other one."""
        self.after: dict[Step, Standing] = _After(self)

    def __repr__(self) -> str:
        more = " locks" * self.locks + " gaps" * self.gaps
        return f"<Standing {self.lead.value} {self.life.value}{more}>"


class _After(dict[Step, Standing]):
    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def __missing__(self, step: Step) -> NoReturn:
        raise IllegalStepError(f"{self._standing}: there is no step {step!r}")


_ALL = {
    facts: Standing(*facts) for facts in product(Lead, Life, (False, True), (False, True))
}  # fmt: skip


def _link(standing: Standing) -> None:
    lead, life, locks, gaps = standing.lead, standing.life, standing.locks, standing.gaps
    after = standing.after
    for (lead_before, lead_step), lead_then in LEADS.items():
        if lead_before is lead:
            after[lead_step] = _ALL[lead_then, life, locks, gaps]
    for (life_before, life_step), life_then in LIVES.items():
        if life_before is life:
            then = Lead.IDLE if life_step == "fork" else lead
            after[life_step] = _ALL[then, life_then, locks, gaps]
    after["lock"] = _ALL[lead, life, True, gaps]
    after["unlock"] = _ALL[lead, life, False, gaps]
    after["leave gaps"] = _ALL[lead, life, locks, True]
    after["close gaps"] = _ALL[lead, life, locks, False]


for _standing in _ALL.values():
    _link(_standing)

STANDINGS = tuple(_ALL.values())
"""All there are."""

FIRST = _ALL[Lead.IDLE, Life.RECOVERING, False, False]
"""Where a store begins that is being opened."""
