"""One connection of a client to a member, without I/O: what goes out, and what came in means.

Invariants:

- Nothing is asked before the member has said ``welcome``.
- What a member tells of its cluster is known before the answer that came behind it is handed on.
- A member hears of a decision that this client knows ahead of the request that may rest on it.

Left out: the socket (``lines``, ``links``), and what to ask whom (``routing``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...affinity.errors import TransactionTooLargeError, UsageError
from ..net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message, small_frame
from ..net.handshake import Introduction, Refusal, heard, judge_answer
from ..net.kinds import BY_NAME, CLIENT, checked_message
from ..net.links import Links
from .routing import Cluster

REQUEST = BY_NAME["request"].number
RESPONSE = BY_NAME["response"].number
FAILURE = BY_NAME["failure"].number
WELCOME = BY_NAME["welcome"].number
TOPOLOGY = BY_NAME["topology"].number
CANCEL = BY_NAME["cancel"].number
KNOWN_DECIDED = BY_NAME["known"].number

RECEIVE_BYTES = 1 << 16
"""Bytes that are received at once: more would have memory mapped for each answer."""
RESPONSE_LENGTH = 3
COMMITS = frozenset(("commit", "commit-locked"))
"""Operations that are as large as a transaction."""


class NotWelcomeError(Exception):
    """One of both ends refuses the connection."""


class Dialogue:
    """What is said on one connection; made before it is connected."""

    def __init__(
        self, cluster: Cluster, line: bytes, number: int, expected: bytes | None = None
    ) -> None:
        self.member = b""
        """Who is at the other end; empty until it has introduced itself."""
        self.welcome = False
        """Whether requests may be sent."""
        self._cluster = cluster
        self._expected = expected
        self._told = cluster.decided
        self._mine = Introduction(
            role="client",
            channel=CLIENT,
            member=line,
            cluster=cluster.id,
            number=number,
            decided=self._told,
            wanted=expected or b"",
        )
        self._decoder = FrameDecoder()
        self._next = 0

    def introduction(self) -> bytes:
        """Return what is sent first."""
        return frame([pack_message(self._mine.message())])

    def request(
        self, operation: str, arguments: Sequence[object], left_us: int
    ) -> tuple[int, bytes]:
        """Return the id of a request, and its bytes.

        One that is too long is a ``TransactionTooLargeError`` if it is a commit, else a
        ``UsageError``.
        """
        self._next = number = self._next + 1
        try:
            packed = pack_message((REQUEST, number, left_us, operation, arguments))
        except UsageError as error:
            if operation not in COMMITS:
                raise
            raise TransactionTooLargeError(
                f"the transaction is too large: {error}",
                hint="Put fewer or smaller values into one; `map.load` commits in parts.",
            ) from None
        decided = self._cluster.decided
        if decided == self._told:
            return number, frame((packed,))
        self._told = decided
        return number, frame((pack_message((KNOWN_DECIDED, decided)), packed))

    def cancel(self, number: int) -> bytes:
        """Return what says that nobody waits for an answer any more."""
        return frame((pack_message((CANCEL, number)),))

    @property
    def bytes_max(self) -> int:
        """How many bytes may be received next: before the introduction no more than it has."""
        return RECEIVE_BYTES if self.member else self._decoder.missing

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes that arrived; return the answers among them, in order.

        ``FrameError`` or ``UnwelcomeError`` end the connection.
        """
        if self.welcome and self._decoder.is_empty:
            messages = small_frame(data)
            # All that a response has; what its value is, whoever asked finds out.
            if messages is not None and all(map(_is_response, messages)):
                return messages
        answers = []
        for message in self._decoder.feed(data):
            if not self.member:
                self._introduced(message)
                continue
            checked = checked_message(message, CLIENT)
            kind = checked[0]
            if kind in (RESPONSE, FAILURE):
                answers.append(checked)
            elif kind == TOPOLOGY:
                self._cluster.learn(checked[1])
            elif kind == WELCOME:
                self._cluster.meet(checked[1], checked[2], checked[4])
                self.welcome = True
            elif kind != KNOWN_DECIDED:
                raise FrameError(f"a message of the kind {kind}, which no member says to a client")
        return answers

    def _introduced(self, message: Message) -> None:
        other = heard(message)
        refusal = (
            other
            if isinstance(other, Refusal)
            else judge_answer(
                self._mine, other, expected=self._expected, links=Links(), standing=_nobody_is_out
            )
        )
        if refusal is not None:
            raise NotWelcomeError(f"refused: {refusal.reason}")
        assert isinstance(other, Introduction)
        self.member = other.member
        self._decoder.limits = KNOWN


def _is_response(message: Message) -> bool:
    return len(message) == RESPONSE_LENGTH and message[0] == RESPONSE and type(message[1]) is int


def _nobody_is_out(_member: bytes, _boot: int, _nonce: bytes) -> None:
    return None
