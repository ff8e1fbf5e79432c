"""Loads for tests: a directory with some rows in a file or several."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.upkeep.load_files import LoadManifest, write_file, write_load_manifest

TIME = 1_700_000_000_000_000


def rows_of(count: int, tag: bytes = b"row", size: int = 0) -> dict[bytes, bytes]:
    """Return rows of which no two tags have the same values."""
    return {b"key%05d" % n: b"%s %d" % (tag, n) + bytes(size) for n in range(count)}


def make_load(
    directory: Path,
    rows: Mapping[bytes, bytes],
    *,
    partitions: int = 4,
    name: str = "cities",
    files: int = 2,
    key_codec: tuple[str, int] = ("bytes", 1),
    value_codec: tuple[str, int] = ("bytes", 1),
) -> str:
    """Write a load with these encoded rows; return where."""
    directory.mkdir()
    placed = sorted((partition_of(key, Space(0, partitions)), key, rows[key]) for key in rows)
    parts = [
        (partition, [(key, value) for _, key, value in group])
        for partition, group in groupby(placed, key=lambda row: row[0])
    ]
    written = [
        write_file(str(directory / f"part-{number}.mdb"), parts[number::files], TIME)
        for number in range(files)
    ]
    manifest = LoadManifest(
        id=b"load %011d" % len(rows),
        partitions=partitions,
        map=name,
        key_codec=key_codec,
        value_codec=value_codec,
        time=TIME,
        files=tuple(written),
    )
    write_load_manifest(str(directory), manifest)
    return str(directory)
