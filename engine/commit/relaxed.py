"""Puts of a store that syncs at leisure: one lock, one frame, one append each, and no queue.

A put takes this way where nothing stands in it (``Committer.in_the_way``); else it queues up as
any other commit does.  It is made of closures on purpose: what is done once per put would cost half
as much again in methods.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Container

from mmh3 import hash as murmur3

from ..data.namespaces import Namespace
from ..data.overlay import PAIR_OVERHEAD
from ..data.stored import TRAILER_SIZE, pack_trailer
from .committer import Committer, of_the_disk
from .puts import PUT_BYTES_MAX

TURN_MASK = 511
"""A put lets a checkpoint write a part once in so many transactions, and one: otherwise the
checkpoint would get the interpreter once in five milliseconds."""

RECORD_OVERHEAD = PAIR_OVERHEAD + TRAILER_SIZE + 64


def relaxed_setter(
    committer: Committer,
    namespace: Namespace,
    inside: Container[object],
    room: Callable[[], None],
    limit: int,
    otherwise: Callable[[bytes, bytes | None], None],
) -> Callable[[bytes, bytes | None], None]:
    """Return a function that sets an encoded key without a sync.

    ``inside`` holds the threads that are in a transaction block.  ``room`` is called where the
    active layer holds ``limit`` bytes.  ``otherwise`` sets the key where it is deleted (None), its
    value is longer than ``PUT_BYTES_MAX``, its thread is in a block, or anything stands in the way.
    """
    mutex, overlay, state = committer.mutex, committer.overlay, committer.state
    counters, epochs = state.counters, state.epochs
    prefixes, number_of_map = namespace.prefixes, namespace.id
    first, count, _ = namespace.space
    writer, clock, encode = committer.writer, committer.clock, committer.encode_put
    append = writer.append
    trailer = pack_trailer

    def land(
        partition: int, full_key: bytes, value: bytes, epoch: int, number: int, time: int
    ) -> None:
        """Let a put that is logged take effect; done twice it does the same."""
        counters[partition].apply_one(number)
        state.time = time
        layer = overlay.view.layers[0]
        part = layer.parts.get(partition)
        if part is None:
            part = layer.part(partition)
        part[full_key] = value + trailer(0, epoch, number, time)
        layer.bytes += len(value) + RECORD_OVERHEAD
        committer.applied_position = writer.position
        overlay.changes += 1

    def set_one(key: bytes, value: bytes | None) -> None:
        if value is None or len(value) > PUT_BYTES_MAX or (inside and get_ident() in inside):
            return otherwise(key, value)
        if overlay.view.layers[0].bytes >= limit:
            room()
        if not committer.last_id & TURN_MASK:
            committer.pass_turn()
        partition = first + murmur3(key, 0, False) % count
        full_key = prefixes[partition] + key
        with mutex:
            if not committer.in_the_way and committer.changing is None and namespace.alive:
                counter = counters[partition]
                number = counter.hwm + 1
                epoch = epochs[partition]
                time = clock()
                if time < state.time:
                    time = state.time
                committer.last_id = tx = committer.last_id + 1
                before = writer.position
                try:
                    if append(
                        encode(tx, time, partition, epoch, number, number_of_map, key, value)
                    ):
                        land(partition, full_key, value, epoch, number, time)
                        return None
                except BaseException as error:
                    # A signal behind the frame: it takes effect all the same.
                    what = (partition, full_key, value, epoch, number, time)
                    committer.left = (before, land, what)
                    committer.changing, overlay.applying = "a commit", True
                    committer.check_whole()
                    if of_the_disk(error) and writer.position == before:
                        raise committer.disk_error(error) from error
                    raise
        return otherwise(key, value)

    return set_one
