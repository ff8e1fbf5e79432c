"""The first frame each way: who both are, and whether the connection may be.

Who connects introduces itself.  Who accepts introduces itself, too, or answers with a refusal, and
closes.  Nothing else is sent before that, under the limits for strangers.

Invariants:

- Every verdict follows from the two introductions and what was known before them.
- The version of the wire is the highest that both speak.
- Someone who is new has no cluster id yet, and learns it; two that have one must have the same.

Left out: encryption and passwords, and limits of time (``transport``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from ...wal.records.shapes import ID_SIZE
from .frames import FrameError, Message
from .kinds import BY_NAME, CHANNELS, CLIENT, Channel, checked_message
from .links import Links

MAGIC: Final = b"tidelog"
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
"""The versions of the wire that this code speaks."""

Role = Literal["member", "client", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)

INTRODUCTION = BY_NAME["introduction"]
REFUSAL = BY_NAME["refusal"]

OutOf = Callable[[bytes, int, bytes], str | None]
"""Why a member under a boot, with the nonce of its disk, counts no more by the decided log: the
code of a refusal; None if it does count."""
_OUT = {
    "gone": "is out of the topology",
    "copy": "was another disk: this one is an old image, or a copy",
    "lost": "was declared lost: others go on without what its disk has",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What one end of a connection says about itself."""

    role: Role
    channel: Channel
    member: bytes
    """The id of the member; of clients and tools one that they made up."""
    cluster: bytes = b""
    """Empty for someone who does not know it yet."""
    boot: int = 0
    number: int = 0
    """Of this connection; the answer repeats it."""
    decided: int = 0
    """How many decisions are known there."""
    nonce: bytes = b""
    """The fresh nonce of a member's disk; clients and tools have none."""
    wanted: bytes = b""
    """The member that is to be reached; empty if whoever is there is right."""
    history: bytes = b""
    """What a member takes the cluster to have begun as; clients and tools have none."""
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX

    def message(self) -> Message:
        """Return the message that says so."""
        return INTRODUCTION.message(
            MAGIC, self.version_min, self.version_max, self.role, self.channel, self.cluster,
            self.member, self.boot, self.number, self.decided, self.nonce, self.wanted,
            self.history,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection may not be."""

    code: str
    """One of ``cluster``, ``history``, ``version``, ``gone``, ``copy``, ``lost``, ``boot``,
    ``number``, ``member``, ``role``, ``full``."""
    reason: str

    def message(self) -> Message:
        """Return the message that says so."""
        return REFUSAL.message(self.code, self.reason)


def heard(message: Message) -> Introduction | Refusal:
    """Return what the first message of the other end says; ``FrameError`` if nothing of that."""
    known = checked_message(message, CLIENT)
    if known[0] == REFUSAL.number:
        return Refusal(*known[1:])
    if known[0] != INTRODUCTION.number or known[1] != MAGIC:
        raise FrameError("the first message is not an introduction of tidelog")
    _, _, version_min, version_max, role, channel, cluster, member, *numbers = known[:-3]
    nonce, wanted, history = known[-3:]
    boot, number, decided = numbers
    if role not in ROLES or channel not in CHANNELS:
        raise FrameError("an introduction with a role or a class of connection that is not known")
    if len(member) != ID_SIZE or len(cluster) not in (0, ID_SIZE) or min(numbers) < 0:
        raise FrameError("an introduction with an id or a number that cannot be")
    return Introduction(
        role=cast(Role, role),
        channel=cast(Channel, channel),
        member=member,
        cluster=cluster,
        boot=boot,
        number=number,
        decided=decided,
        nonce=nonce,
        wanted=wanted,
        history=history,
        version_min=version_min,
        version_max=version_max,
    )


def judge_caller(
    mine: Introduction, other: Introduction, *, links: Links, standing: OutOf
) -> Refusal | None:
    """Return why a connection that someone else made may not be; None if it may."""
    if (other.role == "member") == (other.channel == CLIENT):
        return Refusal("role", f"a {other.role} does not make {other.channel} connections")
    if other.wanted not in (b"", mine.member):
        return Refusal("member", "another member is at this address")
    refusal = _strangers(mine, other) or _out(other, standing)
    if refusal or other.role != "member":
        return refusal
    if other.boot < links.boot_of(other.member):
        return _older_boot(other, links)
    if not links.admits(other.member, other.channel, other.boot, other.number):
        return Refusal("number", f"connection {other.number} is not newer than one known here")
    return None


def judge_answer(
    mine: Introduction,
    other: Introduction,
    *,
    expected: bytes | None,
    links: Links,
    standing: OutOf,
) -> Refusal | None:
    """Return why a connection that was made here may not be; None if it may.

    ``expected`` is the member that was to be reached; None if whoever is there is right.
    """
    if other.role != "member" or expected not in (None, other.member):
        return Refusal("member", "another member answers at this address")
    if other.number != mine.number or other.channel != mine.channel:
        return Refusal("number", f"the answer is for connection {other.number}, not {mine.number}")
    refusal = _strangers(mine, other) or _out(other, standing)
    if not refusal and other.boot < links.boot_of(other.member):
        return _older_boot(other, links)
    return refusal


def _strangers(mine: Introduction, other: Introduction) -> Refusal | None:
    if min(mine.version_max, other.version_max) < max(mine.version_min, other.version_min):
        return Refusal(
            "version",
            f"versions {other.version_min} to {other.version_max} of the wire are spoken there, "
            f"and {mine.version_min} to {mine.version_max} here",
        )
    if mine.cluster and other.cluster and mine.cluster != other.cluster:
        return Refusal(
            "cluster", f"this is cluster {mine.cluster.hex()}, not {other.cluster.hex()}"
        )
    if mine.history and other.history and mine.history != other.history:
        return Refusal(
            "history",
            "both members are of one cluster, and were made with different --members or "
            "--partitions",
        )
    return None


def _out(other: Introduction, standing: OutOf) -> Refusal | None:
    if other.role != "member":
        return None
    code = standing(other.member, other.boot, other.nonce)
    if code is None:
        return None
    # Each start of a member that is lost is another boot, and none of them was declared so.
    who = "this member" if code == "lost" else f"boot {other.boot} of this member"
    return Refusal(code, f"{who} {_OUT[code]}")


def _older_boot(other: Introduction, links: Links) -> Refusal:
    return Refusal(
        "boot", f"boot {other.boot} is over: {links.boot_of(other.member)} has been seen here"
    )
