"""From messages to the bytes of a connection, and back: frames of msgpack with a length in front.

A frame is ``length u32`` (big endian), then that many bytes of one msgpack array: its messages,
each an array itself.  What stands in them is nothing, flags, integers, floats, text, bytes, arrays
and maps whose keys are text or bytes.

Invariants:

- A frame over the limit is refused by its length, before more of it is taken.
- An array of more than ``QUICK_ITEMS`` is not made before the structure of its frame was gone over,
  so that items that did not arrive cost next to no memory (8 MiB: msgpack keeps 1,024 arrays open);
  and of at most ``items_max`` items anything is ever made.
- Whatever bytes arrive: messages, or ``FrameError``.  After an error a decoder is of no more use.

Left out: what the messages mean (``kinds``), and types that msgpack adds (times, extensions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn

import msgpack

from ...affinity.errors import UsageError

Message = list[Any]
"""The number of a kind, then its fields."""

LENGTH_BYTES = 4
CONTAINERS = frozenset({dict, list})
ONE = msgpack.packb([None])[:1]
"""The head of an array of one item."""
QUICK_ITEMS = 1024
"""Arrays and maps up to here are made at once."""
SMALL_BYTES = 8192
"""Frames up to here cost so little memory, whatever is in them, that ``small_frame`` is quick."""


class FrameError(Exception):
    """The peer sent what is not a frame, or one over a limit: the connection has to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How much one frame may be."""

    bytes_max: int
    depth_max: int
    """Arrays and maps in one another; a message has one, or two with a column."""
    items_max: int
    """Of all arrays and maps together; of a map each key is one, and each value."""


STRANGER = FrameLimits(bytes_max=4096, depth_max=1, items_max=64)
"""Limits before the handshake is done."""
KNOWN = FrameLimits(bytes_max=64 << 20, depth_max=12, items_max=1 << 20)
"""Limits behind the handshake: the largest value fits, and what stands around it."""
SENDABLE = replace(KNOWN, bytes_max=KNOWN.bytes_max - 64, items_max=KNOWN.items_max - 64)
"""Limits for one message, so that ``known`` fits into its frame, too."""


def pack_message(message: Sequence[object]) -> bytes:
    """Return the bytes of a message, as they stand in a frame.

    ``UsageError`` if the other end would refuse it for its size.
    """
    data: bytes = msgpack.packb(message)
    if len(data) > SENDABLE.items_max and not _is_surely_sendable(message, len(data)):
        try:
            FrameDecoder(SENDABLE).feed(frame([data]))
        except FrameError as error:
            text = f"a message of {len(data):,} bytes would be refused: {error}"
            raise UsageError(text, hint="Send it in pieces.") from None
    return data


def _is_surely_sendable(message: Sequence[object], size: int) -> bool:
    """Tell whether a message cannot have too many items, each of which has a byte at least."""
    of_bytes = sum(len(field) for field in message if isinstance(field, bytes))
    return size <= SENDABLE.bytes_max and size - of_bytes <= SENDABLE.items_max


def frame(packed: Sequence[bytes]) -> bytes:
    """Return the frame of messages that are packed already."""
    count = len(packed)
    head: bytes = ONE if count == 1 else msgpack.Packer().pack_array_header(count)
    length = len(head) + sum(map(len, packed))
    return b"".join((length.to_bytes(LENGTH_BYTES, "big"), head, *packed))


def small_frame(data: bytes) -> list[Message] | None:
    """Return the messages of one small frame, if that is all that arrived; None for all else.

    For a client, which trusts its members more than they do it: structure and depth are not gone
    over first.  What is in the messages is not checked either.
    """
    size = len(data)
    if not LENGTH_BYTES < size <= SMALL_BYTES:
        return None
    if int.from_bytes(data[:LENGTH_BYTES], "big") != size - LENGTH_BYTES:
        return None
    try:
        messages = msgpack.unpackb(
            data[LENGTH_BYTES:], max_array_len=size, max_map_len=size, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException):
        return None  # whoever goes over it tells what is wrong
    return messages if type(messages) is list and set(map(type, messages)) == {list} else None


class FrameDecoder:
    """Makes messages of bytes that arrive in any pieces."""

    def __init__(self, limits: FrameLimits = STRANGER) -> None:
        self.limits = limits
        """May be raised between two calls."""
        self._arrived = bytearray()

    def __repr__(self) -> str:
        return f"<FrameDecoder {len(self._arrived)} bytes of the next frame>"

    @property
    def is_empty(self) -> bool:
        """Whether all that arrived was whole frames."""
        return not self._arrived

    @property
    def missing(self) -> int:
        """At least so many bytes are missing to the end of the next frame.

        Whoever receives no more than that takes nothing of the frame behind it.
        """
        length = self._length(0)
        end = LENGTH_BYTES if length is None else LENGTH_BYTES + length
        return end - len(self._arrived)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, and return the messages of all frames that they complete, in order."""
        size = len(data) - LENGTH_BYTES
        whole = int.from_bytes(data[:LENGTH_BYTES], "big") == size
        if whole and not self._arrived and size <= self.limits.bytes_max:  # mostly
            return _messages_of(memoryview(data)[LENGTH_BYTES:], self.limits)
        self._arrived += data
        messages: list[Message] = []
        start = 0
        while (length := self._length(start)) is not None:
            end = start + LENGTH_BYTES + length
            if end > len(self._arrived):
                break
            with memoryview(self._arrived) as arrived, arrived[start + LENGTH_BYTES : end] as body:
                messages += _messages_of(body, self.limits)
            start = end
        del self._arrived[:start]
        return messages

    def _length(self, start: int) -> int | None:
        head = self._arrived[start : start + LENGTH_BYTES]
        if len(head) < LENGTH_BYTES:
            return None
        length = int.from_bytes(head, "big")
        if length > self.limits.bytes_max:
            _refuse(f"a frame of {length:,} bytes; the limit is {self.limits.bytes_max:,}")
        return length


def _messages_of(body: bytes | memoryview, limits: FrameLimits) -> list[Message]:
    try:
        try:
            messages = _unpacked(body, limits, min(QUICK_ITEMS, limits.items_max))
        except (ValueError, msgpack.UnpackException):
            _go_over(body)
            messages = _unpacked(body, limits, limits.items_max)
    except (ValueError, msgpack.UnpackException) as error:
        kind = type(error).__name__
        raise FrameError(f"a frame of {len(body):,} bytes is not msgpack: {kind} {error}") from None
    if type(messages) is not list or not messages or set(map(type, messages)) != {list}:
        _refuse(f"a frame of {len(body):,} bytes is not an array of messages")
    _check_depth(messages, limits.depth_max)
    return messages


def _unpacked(body: bytes | memoryview, limits: FrameLimits, items_max: int) -> Any:
    """Return the value that bytes are; no array or map of it has more than ``items_max`` items."""
    count = None if len(body) <= limits.items_max else _counter(limits.items_max)
    return msgpack.unpackb(
        body,
        object_hook=count,
        list_hook=count,
        ext_hook=_refuse_extension,
        max_array_len=items_max,
        max_map_len=items_max,
        max_ext_len=0,
    )


def _go_over(body: bytes | memoryview) -> None:
    """Raise unless the bytes are one value, of which nothing is made here."""
    size = max(len(body), 1)
    unpacker = msgpack.Unpacker(max_buffer_size=size, read_size=size)
    unpacker.feed(body)
    unpacker.skip()
    if unpacker.tell() != len(body):
        _refuse(f"a frame of {len(body):,} bytes ends behind its messages")


def _counter(items_max: int) -> Callable[[Any], Any]:
    """Return what goes over each array and map that is made, and counts its items."""
    left = items_max

    def count(container: Any) -> Any:
        nonlocal left
        left -= len(container) * (2 if type(container) is dict else 1)
        if left < 0:
            _refuse(f"a frame of more than {items_max:,} items")
        return container

    return count


def _check_depth(messages: list[Message], depth_max: int) -> None:
    level: list[Any] = messages
    for _ in range(depth_max):
        # All of a level at once, in C.
        items = list(chain.from_iterable(level))
        if CONTAINERS.isdisjoint(map(type, items)):
            return
        level = [_items(item) for item in items if type(item) in CONTAINERS]
    _refuse(f"arrays or maps lie more than {depth_max} deep in one another")


def _items(container: Any) -> Iterable[Any]:
    """Return what lies in an array, or under the keys of a map."""
    return container.values() if type(container) is dict else container


def _refuse_extension(_code: int, _data: bytes) -> NoReturn:
    _refuse("a frame with an extension of msgpack")


def _refuse(text: str) -> NoReturn:
    raise FrameError(text)
