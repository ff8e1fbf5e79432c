"""Attaching: the rows of a load (``load_files``) become a map of a store, past the log.

One attach, step by step, and what a crash leaves:

1. Check each byte of the load.  A crash: nothing.
2. Make a map whose name is *hidden*.  A crash, from here to 5: that map, which nobody sees, and
   which the next open drops; numbers that were closed stay closed.
3. Log an INGEST record, durable: it takes the numbers of all rows and closes them at once, so that
   nothing waits for the rows.
4. Write the rows, stamped with these numbers, into the data file, a piece to a transaction.
   Checkpoints and commits go on in between.
5. Take a checkpoint: the data file is behind the INGEST record now, which nobody replays any more.
6. Give the map its name, durable.  A crash: the map, whole.

Invariants:

- All rows become visible at once.  A snapshot from before that refuses the map: it may have some.
- Whatever goes wrong before 6 leaves the store as it was, but for numbers that are closed.
- Memory is bounded by a piece and a block of the load.  The load is read, and stays as it is.

Left out: making loads, and whether keys and values are what the codecs made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from operator import attrgetter

from ...affinity.errors import CodecError, CorruptDataError, TidelogError, UsageError
from ...affinity.partitions import Space, partitions_of
from ...wal.records import DIGEST_SIZE, IngestRecord, Run, encode_record
from ..data.namespaces import VALUE_BYTES_MAX, Namespace
from ..data.stored import KEY_BYTES_MAX, stored_run
from ..store.catalog import Catalog
from ..store.opening import OpenStore
from ..system.disk_errors import translated_disk
from ..system.limits import Limits
from .load_files import ANEW, LoadManifest, check_file, read_load_manifest, read_part

RowsByPartition = dict[int, dict[bytes, bytes]]
"""Stored values by full key by partition, in order."""


def attach(
    store: OpenStore,
    catalog: Catalog,
    directory: str,
    name: str | None,
    check: Callable[[], None],
) -> Namespace:
    """Make a load a map called ``name``, or as the load says; return its namespace.

    One at a time.  ``check`` raises if the store may not be written any more.  Raises
    ``UsageError``, ``NotFoundError``, ``CodecError``, ``CorruptDataError``, ``DiskError``.
    """
    with translated_disk(f"reading the load in {directory}"):
        manifest = read_load_manifest(directory)
        if manifest.partitions != store.state.partitions:
            raise UsageError(
                f"the load in {directory} is for {manifest.partitions} partitions, the store has "
                f"{store.state.partitions}",
                hint="Make the load anew, with the partitions of the store.",
            )
        name = manifest.map if name is None else name
        catalog.check_free(name)
        for file in manifest.files:
            check_file(directory, file)
    catalog.drop_hidden()  # left behind if the disk was too full for the one that failed
    try:
        namespace = catalog.make_hidden(manifest.id, manifest.key_codec, manifest.value_codec)
        _check_keys(directory, manifest, namespace)
        _write_rows(store, manifest, directory, namespace, check)
        store.checkpointer.run("attach")
        catalog.publish(namespace, name)
    except BaseException:
        with suppress(TidelogError):  # what went wrong may prevent this, too
            catalog.drop_hidden()
        raise
    return namespace


def _check_keys(directory: str, manifest: LoadManifest, namespace: Namespace) -> None:
    """Raise ``CodecError`` for keys that the codec of the manifest cannot have made.

    The first and the last of each partition are looked at: whoever writes a load checks all.
    """
    for part in (part for file in manifest.files for part in file.partitions):
        for key in (part.first_key, part.last_key):
            try:
                namespace.check_encoded(key[:KEY_BYTES_MAX], None)
            except CodecError as error:
                raise CodecError(
                    f"the load in {directory} has keys that do not decode as "
                    f"{manifest.key_codec[0]}, the codec in its manifest, such as {key!r}",
                    hint="Make the load anew, with the codecs that its keys and values have.",
                ) from error.__cause__


def _write_rows(
    store: OpenStore,
    manifest: LoadManifest,
    directory: str,
    namespace: Namespace,
    check: Callable[[], None],
) -> None:
    """Take numbers for all rows, and write these into the data file under them."""
    record, position = _ingest(store, manifest, namespace)
    limits = store.environment.limits
    stamped = _stamped(directory, manifest, record, namespace, limits.load_block_bytes)
    # Closed at once if something goes wrong, and with it the file that is being read.
    with closing(stamped), closing(pieces_of(stamped, limits)) as pieces:
        for rows in pieces:
            store.checkpointer.add(rows, position, check)


def _ingest(
    store: OpenStore, manifest: LoadManifest, namespace: Namespace
) -> tuple[IngestRecord, int]:
    """Log which numbers the rows get; return the record and the position behind it."""
    state = store.state
    everything = [part for file in manifest.files for part in file.partitions]
    parts = sorted(everything, key=attrgetter("partition"))
    made: list[IngestRecord] = []

    def make(time: int) -> bytes:
        counters, epochs = state.counters, state.epochs
        runs = [
            Run(p.partition, epochs[p.partition], counters[p.partition].reserve(p.rows) + 1, p.rows)
            for p in parts
        ]
        record = IngestRecord(
            time=time,
            namespace=namespace.id,
            load=manifest.id,
            runs=tuple(runs),
            digests=tuple(part.digest.to_bytes(DIGEST_SIZE, "little") for part in parts),
        )
        made.append(record)
        return encode_record(record)

    position = store.committer.log_made(
        make, durable=True, then=lambda: state.apply(store.writer.position, made[0])
    )
    return made[0], position


def _stamped(
    directory: str,
    manifest: LoadManifest,
    record: IngestRecord,
    namespace: Namespace,
    block_bytes: int,
) -> Generator[tuple[int, dict[bytes, bytes]], None, None]:
    """Yield the rows by blocks of one partition, as the store holds them."""
    runs = {run.partition: run for run in record.runs}
    for file in manifest.files:
        path = os.path.join(directory, file.name)
        for part in file.partitions:
            partition, epoch, number, _ = runs[part.partition]
            prefix = namespace.prefixes[partition]
            for block in read_part(path, part, block_bytes=block_bytes):
                keys, values = [key for key, _ in block], [value for _, value in block]
                _check_rows(path, partition, namespace.space, keys, values)
                stored = stored_run(values, epoch, number, record.time)
                yield partition, dict(zip(map(prefix.__add__, keys), stored, strict=True))
                number += len(block)


def _check_rows(
    path: str, partition: int, space: Space, keys: Sequence[bytes], values: Sequence[bytes]
) -> None:
    """Raise ``CorruptDataError`` for rows that a store does not have, or elsewhere."""
    if max(map(len, keys)) > KEY_BYTES_MAX or max(map(len, values)) > VALUE_BYTES_MAX:
        raise CorruptDataError(
            f"{path} has a key or a value that is too large for a store", hint=ANEW
        )
    if {*partitions_of(keys, space)} != {partition}:
        raise CorruptDataError(
            f"{path} has keys in partition {partition} that belong elsewhere", hint=ANEW
        )


def pieces_of(
    stamped: Iterator[tuple[int, dict[bytes, bytes]]], limits: Limits
) -> Generator[RowsByPartition, None, None]:
    """Yield rows, that come by blocks of one partition, as a transaction takes them."""
    piece: RowsByPartition = {}
    count = size = 0
    for partition, rows in stamped:
        piece.setdefault(partition, {}).update(rows)
        count += len(rows)
        size += sum(map(len, rows)) + sum(map(len, rows.values()))
        if count >= limits.attach_rows or size >= limits.attach_bytes:
            yield piece
            piece, count, size = {}, 0, 0
    if piece:
        yield piece
