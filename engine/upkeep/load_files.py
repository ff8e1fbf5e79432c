"""A load: a directory of LMDB files with the rows of one map, for a store to take in at once.

``manifest.json`` says for which store and map the load is, and which file has which partitions.
Each file has whole partitions, in the form of the store's own data file with namespace 0: keys in
order, numbered 1, 2, ... in each partition, each value with its check.

Invariants:

- The manifest is written last and replaced as a whole, and all that it names is durable by then: a
  directory without one is not a load.
- A partition is in one file only, and no key comes twice.
- A file that passes ``check_file`` is, byte for byte, what was written; only then may LMDB read it,
  which a damaged page could end by a signal.

Left out: whether keys and values are what the codecs made, and what becomes of a load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import lt
from typing import Any

from crc32c import crc32c

from ...affinity.errors import (
    CorruptDataError,
    DiskFullError,
    FormatVersionError,
    NotFoundError,
    UsageError,
)
from ...affinity.partitions import PARTITIONS_MAX
from ..data.scan import Pair
from ..data.stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    VALUE,
    check_block,
    checked,
    flags_of,
    pack_prefix,
    present,
    shown_key,
    stored_run,
    xor_trailers,
)
from ..system.disk import RealDirectory
from ..system.environment import Cursor
from ..system.lmdb_file import KvFullError, KvReadError, open_file, read_error

LOAD_FORMAT = 1
LOAD_MANIFEST_NAME = "manifest.json"
NEW_LOAD_MANIFEST_NAME = "manifest.tmp"
BLOCK_BYTES = 1 << 20
"""What is checked, or written, at a time."""
TRANSACTION_BYTES = 32 << 20
MAP_SIZE = 1 << 40

ANEW = "Make the load anew, or bring its files again; the store is as it was."

_ID_SIZE = 16
_DIGEST_MAX = 1 << 8 * TRAILER_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPart:
    """The rows of one partition; ``digest`` is the xor of their trailers in the file."""

    partition: int
    rows: int
    first_key: bytes
    last_key: bytes
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFile:
    """A file of a load: its name in the directory, its size and CRC-32C, and what it has."""

    name: str
    bytes: int
    crc: int
    partitions: tuple[LoadPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadManifest:
    """What a load is: ``partitions`` of the store, codecs as (name, version), microseconds UTC."""

    id: bytes
    partitions: int
    map: str
    key_codec: tuple[str, int]
    value_codec: tuple[str, int]
    time: int
    files: tuple[LoadFile, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(part.rows for file in self.files for part in file.partitions)

    def to_json(self) -> str:
        """Return the text of the file: ``check`` is the CRC-32C of all else."""
        fields = {
            "format": LOAD_FORMAT,
            "id": self.id.hex(),
            "partitions": self.partitions,
            "map": self.map,
            "key_codec": self.key_codec,
            "value_codec": self.value_codec,
            "time": self.time,
            "rows": self.rows,
            "files": [_file_fields(file) for file in self.files],
        }
        return _canonical({**fields, "check": _check_of(fields)}) + "\n"

    @staticmethod
    def from_json(text: str) -> LoadManifest:
        """Return the manifest in a text.

        Raises ``CorruptDataError`` for damage, ``FormatVersionError`` for an unknown format.
        """
        try:
            fields = json.loads(text)
            found = int(fields["format"])
            if found != LOAD_FORMAT:
                raise FormatVersionError(
                    f"the load has format {found}; this version of tidelog knows "
                    f"format {LOAD_FORMAT}",
                    found=found,
                    supported=LOAD_FORMAT,
                )
            if fields.pop("check") != _check_of(fields):
                raise ValueError("it does not match its checksum")
            manifest = _manifest_of(fields)
            _validate(manifest, fields["rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"the manifest of the load does not decode: {error}", hint=ANEW
            ) from None
        return manifest


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _check_of(fields: dict[str, Any]) -> str:
    return f"{crc32c(_canonical(fields).encode()):08x}"


def _file_fields(file: LoadFile) -> dict[str, Any]:
    parts = [
        {
            "partition": part.partition,
            "rows": part.rows,
            "first_key": part.first_key.hex(),
            "last_key": part.last_key.hex(),
            "digest": f"{part.digest:0{2 * TRAILER_SIZE}x}",
        }
        for part in file.partitions
    ]
    return {
        "name": file.name,
        "bytes": file.bytes,
        "crc": f"{file.crc:08x}",
        "partitions": parts,
    }


def _manifest_of(fields: dict[str, Any]) -> LoadManifest:
    return LoadManifest(
        id=bytes.fromhex(fields["id"]),
        partitions=int(fields["partitions"]),
        map=str(fields["map"]),
        key_codec=_codec(*fields["key_codec"]),
        value_codec=_codec(*fields["value_codec"]),
        time=int(fields["time"]),
        files=tuple(map(_file_of, fields["files"])),
    )


def _codec(name: str, version: int) -> tuple[str, int]:
    return str(name), int(version)


def _file_of(fields: dict[str, Any]) -> LoadFile:
    parts = tuple(
        LoadPart(
            partition=int(part["partition"]),
            rows=int(part["rows"]),
            first_key=bytes.fromhex(part["first_key"]),
            last_key=bytes.fromhex(part["last_key"]),
            digest=int(part["digest"], 16),
        )
        for part in fields["partitions"]
    )
    return LoadFile(
        name=str(fields["name"]),
        bytes=int(fields["bytes"]),
        crc=int(fields["crc"], 16),
        partitions=parts,
    )


def _validate(manifest: LoadManifest, rows: int) -> None:
    """Raise ``ValueError`` for what somebody wrote by hand, and wrongly."""
    parts = [part for file in manifest.files for part in file.partitions]
    names = [file.name for file in manifest.files]
    if len(manifest.id) != _ID_SIZE or not 1 <= manifest.partitions <= PARTITIONS_MAX:
        raise ValueError("its id or its number of partitions is not valid")
    if len({part.partition for part in parts}) < len(parts) or len(set(names)) < len(names):
        raise ValueError("a partition, or a file, is in it twice")
    if not all(0 <= part.partition < manifest.partitions for part in parts):
        raise ValueError("a partition has a number that the store does not have")
    if any(os.path.basename(name) != name or name in ("", ".", "..") for name in names):
        raise ValueError("a file is not in the directory")
    if not all(part.rows > 0 and 0 <= part.digest < _DIGEST_MAX for part in parts):
        raise ValueError("a partition has no rows, or no digest")
    if manifest.rows != rows:
        raise ValueError(f"it has {manifest.rows} rows and says {rows}")


def write_load_manifest(directory: str, manifest: LoadManifest) -> None:
    """Write, or replace, the manifest of a directory, durably: from now on it is a load."""
    place = RealDirectory(directory)
    try:
        if NEW_LOAD_MANIFEST_NAME in place.names():
            place.unlink(NEW_LOAD_MANIFEST_NAME)
        file = place.create(NEW_LOAD_MANIFEST_NAME)
        try:
            file.write(0, manifest.to_json().encode())
            file.sync()
        finally:
            file.close()
        place.rename(NEW_LOAD_MANIFEST_NAME, LOAD_MANIFEST_NAME)
        place.sync()
    finally:
        place.close()


def read_load_manifest(directory: str) -> LoadManifest:
    """Return the manifest of a load; raises as ``from_json`` does, and ``NotFoundError``."""
    try:
        with open(os.path.join(directory, LOAD_MANIFEST_NAME), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no load in {directory}",
            hint="Run its job again: it did not get as far as "
            f"{LOAD_MANIFEST_NAME}, the last file.",
        ) from None
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"{directory}: the manifest of the load does not decode: {error}", hint=ANEW
        ) from None
    try:
        return LoadManifest.from_json(text)
    except CorruptDataError as error:
        raise CorruptDataError(f"{directory}: {error}", hint=ANEW) from error.__cause__


# ---------------------------------------------------------------------------------- the files


def write_file(
    path: str,
    parts: Iterable[tuple[int, Iterable[Pair]]],
    time: int,
    *,
    block_bytes: int = BLOCK_BYTES,
    transaction_bytes: int = TRANSACTION_BYTES,
) -> LoadFile:
    """Write partitions, and the rows of each, into a new file; both come in ascending order.

    It is durable but for its name.  Raises ``UsageError`` for a key that comes twice or out of
    order, and if the file is there already.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint="Name a file that is not there yet.")
    written: list[LoadPart] = []
    blocks = _encoded(parts, time, written, block_bytes)
    kv = open_file(path, MAP_SIZE, read_only=False)
    try:
        more = True
        while more:
            with kv.write() as txn:
                more = _append(txn.cursor(), blocks, transaction_bytes)
    except KvFullError as error:
        raise DiskFullError(f"{path} has reached its limit: {error}") from None
    finally:
        kv.close()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())  # the length too, which a transaction leaves to chance
    size, crc = _size_and_crc(path)
    return LoadFile(name=os.path.basename(path), bytes=size, crc=crc, partitions=tuple(written))


def _append(cursor: Cursor, blocks: Iterator[tuple[list[bytes], list[bytes]]], most: int) -> bool:
    """Append as many blocks as one transaction may have; tell whether there may be more."""
    size = 0
    for keys, stored in blocks:
        cursor.putmulti(zip(keys, stored, strict=True), append=True)
        size += sum(map(len, keys)) + sum(map(len, stored))
        if size >= most:
            return True
    return False


def _encoded(
    parts: Iterable[tuple[int, Iterable[Pair]]],
    time: int,
    written: list[LoadPart],
    block_bytes: int,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield full keys and stored values by blocks; note each partition when it has ended."""
    for partition, rows in parts:
        if written and partition <= written[-1].partition:
            raise UsageError(f"partition {partition} comes behind {written[-1].partition}")
        prefix = pack_prefix(partition, 0)
        keys: list[bytes] = []
        first_key, count, digest = b"", 0, 0
        for block in _blocks(iter(rows), block_bytes):
            before, keys = keys[-1:], [key for key, _ in block]
            if not all(map(lt, chain(before, keys), keys if before else keys[1:])):
                raise _disorder(partition, before + keys)
            first_key = first_key if count else keys[0]
            full_keys = [prefix + key for key in keys]
            values = [value for _, value in block]
            stored = checked(full_keys, stored_run(values, 0, count + 1, time))
            yield full_keys, stored
            count += len(block)
            digest ^= xor_trailers(stored)
        if count:
            written.append(
                LoadPart(
                    partition=partition,
                    rows=count,
                    first_key=first_key,
                    last_key=keys[-1],
                    digest=digest,
                )
            )


def _blocks(pairs: Iterator[Pair], most_bytes: int) -> Iterator[list[Pair]]:
    """Yield pairs by lists of about so many bytes, as far as those before tell the size."""
    count = 1
    while block := list(islice(pairs, count)):
        yield block
        size = sum(map(len, chain.from_iterable(block)))
        count = max(1, min(4 * count, most_bytes * count // max(size, 1)))


def _disorder(partition: int, keys: list[bytes]) -> UsageError:
    before, key = next(pair for pair in pairwise(keys) if pair[0] >= pair[1])
    if before == key:
        return UsageError(f"key {shown_key(key)} comes twice in partition {partition}")
    return UsageError(
        f"the keys of partition {partition} are out of order: "
        f"{shown_key(key)} comes behind {shown_key(before)}"
    )


def check_file(directory: str, file: LoadFile) -> None:
    """Raise ``CorruptDataError`` unless a file is there, and each byte is as it was written."""
    path = os.path.join(directory, file.name)
    try:
        size, crc = _size_and_crc(path)
    except FileNotFoundError:
        raise CorruptDataError(f"{path}, a file of the load, is gone", hint=ANEW) from None
    if (size, crc) != (file.bytes, file.crc):
        raise CorruptDataError(
            f"{path} is not as it was written: {size} bytes with CRC {crc:08x}, "
            f"not {file.bytes} with {file.crc:08x}",
            hint=ANEW,
        )


def _size_and_crc(path: str) -> tuple[int, int]:
    size = crc = 0
    with open(path, "rb") as file:
        while piece := file.read(BLOCK_BYTES):
            crc = crc32c(piece, crc)
            size += len(piece)
    return size, crc


def read_part(path: str, part: LoadPart, *, block_bytes: int = BLOCK_BYTES) -> Iterator[list[Pair]]:
    """Yield the keys and values of one partition of a file that ``check_file`` has passed.

    Raises ``CorruptDataError`` for a block that is not as it was written, and at the end if the
    blocks are not all that the manifest tells of; ``FormatVersionError`` for values of a later
    version.
    """
    prefix = pack_prefix(part.partition, 0)
    rows = digest = 0
    first_key = last_key = b""
    kv = open_file(path, MAP_SIZE, read_only=True)
    try:
        cursor = kv.begin().cursor()
        found = cursor.iternext() if cursor.set_range(prefix) else iter(())
        # One more than there should be, to see whether the partition ends there.
        for block in _blocks(islice(found, part.rows + 1), block_bytes):
            block = [pair for pair in block if pair[0].startswith(prefix)]
            keys, stored = [key for key, _ in block], [value for _, value in block]
            check_block(keys, stored)
            digest ^= xor_trailers(stored)
            if any(map(flags_of, stored)):
                block = present(block)
            pairs = [(key[PREFIX_SIZE:], value[VALUE]) for key, value in block]
            if pairs:
                first_key = first_key if rows else pairs[0][0]
                last_key = pairs[-1][0]
                rows += len(pairs)
                yield pairs
    except KvReadError as error:
        raise read_error(error) from None
    finally:
        kv.close()
    if (rows, first_key, last_key, digest) != (
        part.rows,
        part.first_key,
        part.last_key,
        part.digest,
    ):
        raise CorruptDataError(
            f"partition {part.partition} of {path} is not what the manifest says: "
            f"{rows} rows instead of {part.rows}, or other rows",
            hint=ANEW,
        )
