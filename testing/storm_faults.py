"""The faults of a storm: lines of text, as a seed draws them or as somebody writes them.

A line is when it comes, what it is, and what that needs.

    AT kill NAME OUTCOME DOWN         a process ends, and is started again DOWN seconds later
    AT kill_at NAME NTH DOWN POINT    the same, when a point is reached for the n-th time
    AT crash_at NAME NTH MOMENT DOWN  its machine loses power at the n-th operation of its disk
    AT stop NAME DOWN                 a member drains and ends
    AT stop_all DOWN                  all members are told to
    AT move PARTITION NAME            a partition is handed over to a member, if it has a copy
    AT power_cut DOWN                 all members lose power
    AT cut NAMES SECONDS              nothing passes between these hosts and the others
    AT cut_way FROM TO SECONDS        nothing of one host arrives at another
    AT hold KIND FROM TO SECONDS      connections stand still from a message of a kind on
    AT reset ONE OTHER                connections break
    AT half_open ONE OTHER            connections break, and only one end knows
    AT suspend NAME SECONDS           the steady clock stands still
    AT jump NAME SECONDS              the wall clock is set
    AT stall SECONDS                  time passes in which nobody does anything
    AT fail NAME NTH SECONDS          the n-th operation of its disk is an I/O error; if its log or
                                      data file failed by then, it is killed SECONDS later
    AT full NAME SECONDS              its disk has no space
    AT hang NAME SECONDS              its disk answers nothing that is asked meanwhile
    AT join NAME                      a new member is started, which joins
    AT leave NAME                     a member is told to leave
    AT want NAME                      a member is told to enter
    AT policy POLICY                  what else happens when partitions are lost
    AT lose NAME                      a member ends and its disk is gone: it is declared lost

NAMES are joined by commas.  The end of any cut heals all.  Nothing hits who has not joined or is
lost.  A disk is lost only if the others can go on deciding.

Left out: what a fault does (``storms``); a machine that stands still alone (the world has none).
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import isfinite

from ..affinity.errors import UsageError
from ..affinity.topology import LOSS_POLICIES
from .cluster import KINDS, POINTS
from .media import CRASH_OUTCOMES
from .plan import MOMENTS

PARTITIONS = 16
STORM_S = 10.0
FAULTS_MIN, FAULTS_MAX = 5, 15
HANG_S_MAX = 15.0
"""Longer than a member waits for its disk before others serve what they have, too."""
MACHINES = 2
NEWCOMERS = 2
"""Members beside those that begin a cluster."""

KILL_POINTS = (
    *(point for point in POINTS if point.split(".")[0] in ("config", "checkpoint", "rotate")),
    "tx.before_prepare_log",
    "tx.after_prepare_log",
    "tx.after_prepare_sync",
    "takeover.after_seal",
    "takeover.after_open",
    *(
        f"{moment} {kind}"
        for kind in ("sync", "checkpoint", "open", "outcome")
        for moment in ("before", "inside", "after")
    ),
)
COPIES_POINTS = (
    "tx.after_prepared_sent",
    "tx.before_commit_log",
    "tx.after_commit_log",
    "takeover.after_report",
    "takeover.after_list_logged",
    "takeover.after_list_stored",
    "admit.sent",
    "admit.logged",
    "supply.first",
    "supply.middle",
    "supply.last",
    "lend.sent",
    "join.sent",
    "add.proposed",
    "add.decided",
    *(f"{moment} supply" for moment in ("before", "inside", "after")),
)
"""Points that only members reach whose partitions have other copies."""
TRANSACTION_POINTS = tuple(point for point in POINTS if point.startswith("tx."))
TRANSACTION_KINDS = (
    *("lock", "locked", "unlock", "confirm", "confirmed", "prepare", "prepared", "refused"),
    *("decision", "question", "settled", "ask-settled", "ask-over", "over", "forget", "too-old"),
    *("acquire", "acquired", "give-back", "probe", "pin", "pinned", "resume", "held"),
)
"""What transactions of several groups add to both."""
COPIES_KINDS = (
    *("replicate", "stored", "report", "settle", "settle-stored", "opened") * 2,
    *("admit", "supply", "pairs", "demand", "reach", "reached", "lend", "lent"),
    *("confirm-copy", "copy-confirmed"),
)
PLANNED_WEIGHTS = ((0, 0), (1, 8))
"""Of ``stop_all`` and ``move``, without copies and with them."""
GROWING_WEIGHTS = (12, 6, 4, 2, 4)
"""Of ``join``, ``leave``, ``want``, ``policy`` and ``lose``, in storms that have them."""
HELD_KINDS = (
    *("ping", "pong", "lease", "propose", "accepted", "decided", "ask-promise", "promise"),
    *("release", "fetch", "propose-change", "change-refused"),
)
GROWING_KINDS = ("join", "join-refused", "leave")


@dataclass(frozen=True, slots=True)
class StormFault:
    """One fault of a storm, as a line."""

    at: float
    kind: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.at:.3f}", self.kind, *self.needs))


_FORMS: dict[str, tuple[str, ...]] = {
    "kill": ("member", "outcome", "seconds"),
    "kill_at": ("member", "count", "seconds", "point"),
    "crash_at": ("member", "count", "moment", "seconds"),
    "stop": ("member", "seconds"),
    "stop_all": ("seconds",),
    "move": ("partition", "member"),
    "power_cut": ("seconds",),
    "cut": ("hosts", "seconds"),
    "cut_way": ("host", "host", "seconds"),
    "hold": ("kind", "member", "member", "seconds"),
    "reset": ("host", "host"),
    "half_open": ("host", "host"),
    "suspend": ("member", "seconds"),
    "jump": ("member", "number"),
    "stall": ("seconds",),
    "fail": ("member", "count", "seconds"),
    "full": ("member", "seconds"),
    "hang": ("member", "seconds"),
    "join": ("newcomer",),
    "leave": ("member",),
    "want": ("member",),
    "policy": ("policy",),
    "lose": ("member",),
}
"""Kind of fault -> what it needs, word by word; a point may be two words."""


def parsed_fault(line: str, nodes: int) -> StormFault:
    """Return the fault that a line tells of; ``UsageError`` if a cluster has no such fault."""
    at, kind, *needs = [*line.split(), "", ""]
    needs = needs[:-2]
    form = _FORMS.get(kind, ())
    if form and form[-1] == "point":
        needs[len(form) - 1 :] = [" ".join(needs[len(form) - 1 :])]
    pairs = zip(form, needs, strict=False)
    wrong = next((word for name, word in pairs if not _fits(name, word, nodes)), None)
    if not _fits("seconds", at, nodes) or kind not in _FORMS or len(needs) != len(form):
        raise UsageError(f"{line!r} is not a fault", hint=_HINT)
    if wrong is not None:
        raise UsageError(f"{wrong!r} in the fault {line!r} is not right there", hint=_HINT)
    return StormFault(float(at), kind, tuple(needs))


_HINT = "`python -m pydoc tidelog.testing.storm_faults` shows their forms."


def _fits(need: str, word: str, nodes: int) -> bool:
    members, hosts = _names(nodes, NEWCOMERS)
    known: dict[str, Container[str]] = {
        "member": members,
        "newcomer": members[nodes:],
        "host": hosts,
        "outcome": CRASH_OUTCOMES,
        "moment": MOMENTS,
        "point": (*KILL_POINTS, *COPIES_POINTS, *POINTS),
        "kind": KINDS,
        "policy": LOSS_POLICIES,
    }
    match need:
        case "partition":
            return word.isdecimal() and int(word) < PARTITIONS
        case "hosts":
            return set(word.split(",")) < set(hosts)
        case "count":
            return word.isdecimal() and int(word) > 0
        case "seconds" | "number":
            try:
                number = float(word)
            except ValueError:
                return False
            return isfinite(number) and (need == "number" or number >= 0)
    return word in known[need]


def _names(nodes: int, newcomers: int) -> tuple[list[str], list[str]]:
    """Return the names of members, and of all hosts."""
    members = [f"n{number}" for number in range(1, nodes + newcomers + 1)]
    return members, [*members, *(f"c{number}" for number in range(1, MACHINES + 1))]


def drawn_faults(
    seed: int, nodes: int, backups: int = 0, *, growing: bool = False, transactions: bool = False
) -> list[StormFault]:
    """Return the faults of a seed, in the order of time.

    ``growing`` tells whether members join, leave, and lose their disks, too; ``transactions``
    whether there are some of several groups.
    """
    rng = random.Random(f"{seed}:{nodes}:{'growing' if growing else 'faults'}")
    count = rng.randint(FAULTS_MIN, FAULTS_MAX)
    times = sorted(round(rng.uniform(0, STORM_S), 3) for _ in range(count))
    points = KILL_POINTS + COPIES_POINTS * bool(backups) + TRANSACTION_POINTS * 2 * transactions
    kinds = HELD_KINDS + COPIES_KINDS * bool(backups) + TRANSACTION_KINDS * transactions
    kinds += GROWING_KINDS * growing
    return [_drawn(rng, at, nodes, backups, growing, points, kinds) for at in times]


def _drawn(
    rng: random.Random, at: float, nodes: int, backups: int, growing: bool,
    points: Sequence[str], kinds: Sequence[str],
) -> StormFault:  # fmt: skip
    members, hosts = _names(nodes, NEWCOMERS * growing)
    one, other = rng.sample(members, 2)
    host, far = rng.sample(hosts, 2)
    seconds, down = f"{rng.uniform(0.1, 4.0):.3f}", f"{rng.uniform(0.0, 3.0):.3f}"
    kind = rng.choices(
        list(_FORMS),
        [
            *(4, 5, 4, 1, *PLANNED_WEIGHTS[backups > 0], 1, 3, 3, 2, 2, 1, 1, 1, 1, 3, 1, 1),
            *(weight * growing for weight in GROWING_WEIGHTS),
        ],
    )[0]
    match kind:
        case "join":
            needs = [rng.choice(members[nodes:])]
        case "policy":
            needs = [rng.choice(LOSS_POLICIES)]
        case "leave" | "want" | "lose":
            needs = [one]
        case "kill":
            needs = [one, rng.choice(CRASH_OUTCOMES), down]
        case "kill_at":
            needs = [
                one,
                str(rng.choice([1, 1, 2, 5, 20])),
                down,
                rng.choice(points),
            ]
        case "crash_at":
            needs = [one, str(rng.randint(1, 200)), rng.choice(MOMENTS), down]
        case "fail":
            needs = [one, str(rng.randint(1, 200)), down]
        case "full":
            needs = [one, seconds]
        case "hang":
            needs = [one, f"{rng.uniform(0.5, HANG_S_MAX):.3f}"]
        case "stop":
            needs = [one, down]
        case "move":
            needs = [str(rng.randrange(PARTITIONS)), one]
        case "power_cut" | "stop_all":
            needs = [down]
        case "cut":
            side = rng.sample(hosts, rng.randint(1, len(hosts) // 2))
            needs = [",".join(sorted(side)), seconds]
        case "cut_way":
            needs = [host, far, seconds]
        case "hold":
            needs = [rng.choice(kinds), one, other, seconds]
        case "reset" | "half_open":
            needs = [host, far]
        case "suspend":
            needs = [one, seconds]
        case "jump":
            needs = [one, f"{rng.uniform(-30, 30):.3f}"]
        case _:
            needs = [f"{rng.uniform(0.1, 3.0):.3f}"]
    return StormFault(at, kind, tuple(needs))
