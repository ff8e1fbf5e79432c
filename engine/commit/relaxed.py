"""Puts of a store that syncs at leisure: one lock, one frame, one append each, and no queue.

A put takes this short cut if nothing is in its way (``Standing.must_queue``); else it queues as any
other commit does.  It is made of closures on purpose: what is done once per put would cost half
as much again in methods.  For the same reason it counts ids and layers' bytes in place.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Container

from mmh3 import hash as murmur3

from ...wal.writer import LogWriter
from ..data.namespaces import Namespace
from ..data.overlay import PAIR_OVERHEAD
from ..data.stored import pack_trailer
from .commit_log import of_the_disk
from .committer import Committer
from .context import A_COMMIT, CommitContext
from .puts import PUT_BYTES_MAX

TURN_MASK = 511
"""A put lets a checkpoint write a part once in so many transactions, and one: otherwise the
checkpoint would get the interpreter once in five milliseconds."""


def relaxed_setter(
    committer: Committer,
    namespace: Namespace,
    inside: Container[object],
    room: Callable[[], None],
    limit: int,
    otherwise: Callable[[bytes, bytes | None], None],
) -> Callable[[bytes, bytes | None], None]:
    """Return a function that sets an encoded key without a sync.

    ``inside`` holds the threads that are in a transaction block.  ``room`` is called if the
    active layer holds ``limit`` bytes.  ``otherwise`` sets the key if it is deleted (None), its
    value is longer than ``PUT_BYTES_MAX``, its thread is in a block, or the put has to queue.
    """
    mutex, context = committer.mutex, committer.context
    state, overlay, ids = context.state, context.overlay, context.ids
    counters, epochs = state.counters, state.epochs
    prefixes, number_of_map = namespace.prefixes, namespace.id
    first, count, _ = namespace.space
    writer, clock, encode = committer.end_of_log.writer, committer.clock, context.encode_put
    append = writer.append
    take_effect = _taker(context, writer)

    def set_one(key: bytes, value: bytes | None) -> None:
        if value is None or len(value) > PUT_BYTES_MAX or (inside and get_ident() in inside):
            return otherwise(key, value)
        if overlay.view.layers[0].bytes >= limit:
            room()
        if not ids.last & TURN_MASK:
            committer.yield_to_checkpoint()
        partition = first + murmur3(key, 0, False) % count
        full_key = prefixes[partition] + key
        with mutex:
            if not context.standing.must_queue and context.changing is None and namespace.alive:
                counter = counters[partition]
                number = counter.hwm + 1
                epoch = epochs[partition]
                time = clock()
                if time < state.time:
                    time = state.time
                ids.last = tx = ids.last + 1
                before = writer.position
                try:
                    if append(
                        encode(tx, time, partition, epoch, number, number_of_map, key, value)
                    ):
                        take_effect(partition, full_key, value, epoch, number, time)
                        return None
                except BaseException as error:
                    # A signal behind the frame: it takes effect all the same.
                    what = (partition, full_key, value, epoch, number, time)
                    context.cut_put = (before, take_effect, what)
                    context.changing, overlay.applying = A_COMMIT, True
                    committer.check_whole()
                    if of_the_disk(error) and writer.position == before:
                        raise committer.end_of_log.append_error(error) from error
                    raise
        return otherwise(key, value)

    return set_one


def _taker(context: CommitContext, writer: LogWriter) -> Callable[..., None]:
    """Return a function that lets a put that is logged take effect."""
    state, overlay, counters = context.state, context.overlay, context.state.counters
    trailer, overhead = pack_trailer, PAIR_OVERHEAD

    def take_effect(
        partition: int, full_key: bytes, value: bytes, epoch: int, number: int, time: int
    ) -> None:
        """Let a put take effect; done twice it does the same."""
        counters[partition].apply_one(number)
        state.time = time
        layer = overlay.view.layers[0]
        part = layer.parts.get(partition)
        if part is None:
            part = layer.part(partition)
        part[full_key] = stored = value + trailer(0, epoch, number, time)
        layer.bytes += len(full_key) + len(stored) + overhead
        context.applied_position = writer.position
        overlay.changes += 1

    return take_effect
