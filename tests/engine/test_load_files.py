from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.affinity.errors import (
    CorruptDataError,
    FormatVersionError,
    NotFoundError,
    UsageError,
)
from tidelog.engine.data.stored import pack_trailer, split_key, version_of
from tidelog.engine.system.lmdb_file import open_file
from tidelog.engine.upkeep import load_files
from tidelog.engine.upkeep.load_files import (
    LoadFile,
    LoadManifest,
    check_file,
    read_load_manifest,
    read_part,
    write_file,
    write_load_manifest,
)

TIME = 1_700_000_000_000_000
ROWS = {
    3: [(b"", b"empty"), (b"a", b""), (b"b", b"x" * 300)],
    4: [(b"only", b"one")],
    1023: [(b"%05d" % number, b"v%d" % number) for number in range(2000)],
}


def written(
    directory: Path, rows: dict[int, list[tuple[bytes, bytes]]] = ROWS, **sizes: int
) -> LoadFile:
    return write_file(str(directory / "part-0.mdb"), rows.items(), TIME, **sizes)


def manifest(*files: LoadFile) -> LoadManifest:
    return LoadManifest(
        id=bytes(range(16)),
        partitions=1024,
        map="naïve",
        key_codec=("bytes", 1),
        value_codec=("json", 2),
        time=TIME,
        files=files,
    )


def read(directory: Path, file: LoadFile, **sizes: int) -> dict[int, list[tuple[bytes, bytes]]]:
    check_file(str(directory), file)
    path = str(directory / file.name)
    return {
        part.partition: [pair for block in read_part(path, part, **sizes) for pair in block]
        for part in file.partitions
    }


def test_a_manifest_is_durable_before_it_has_its_name_and_its_name_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    rename = os.rename

    def noted(kind: str) -> Callable[[int], None]:
        return lambda fd: calls.append((kind, os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))

    def renamed(old: str, new: str, **folders: int) -> None:
        calls.append(("rename", old))
        rename(old, new, **folders)

    monkeypatch.setattr(os, "fdatasync", noted("file"))
    monkeypatch.setattr(os, "fsync", noted("directory"))
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "replace", renamed)
    write_load_manifest(str(tmp_path), manifest())
    new = load_files.NEW_LOAD_MANIFEST_NAME
    assert calls == [("file", new), ("rename", new), ("directory", tmp_path.name)]


def test_a_manifest_that_was_written_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    write_load_manifest(str(tmp_path), manifest())
    assert len(os.listdir("/proc/self/fd")) == before


# -------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("block", [1, 100, load_files.BLOCK_BYTES])
def test_what_is_written_is_read(tmp_path: Path, block: int) -> None:
    file = written(tmp_path, block_bytes=block)
    assert read(tmp_path, file, block_bytes=block) == ROWS
    assert [(part.partition, part.rows) for part in file.partitions] == [
        (3, 3),
        (4, 1),
        (1023, 2000),
    ]
    assert [(part.first_key, part.last_key) for part in file.partitions[::2]] == [
        (b"", b"b"),
        (b"00000", b"01999"),
    ]
    assert file.bytes == (tmp_path / file.name).stat().st_size
    assert os.listdir(tmp_path) == [file.name]


def test_blocks_and_transactions_change_no_byte_of_what_is_told(tmp_path: Path) -> None:
    whole = written(tmp_path).partitions
    (tmp_path / "again").mkdir()
    again = written(tmp_path / "again", block_bytes=1000, transaction_bytes=5000)
    assert again.partitions == whole
    assert read(tmp_path / "again", again) == ROWS


def test_a_file_has_the_form_of_a_store_with_namespace_zero(tmp_path: Path) -> None:
    file = written(tmp_path)
    kv = open_file(str(tmp_path / file.name), 1 << 30, read_only=True)
    pairs = list(kv.begin().cursor().iternext())
    kv.close()
    assert [split_key(key) for key, _ in pairs[:4]] == [
        (3, 0, b""),
        (3, 0, b"a"),
        (3, 0, b"b"),
        (4, 0, b"only"),
    ]
    assert [version_of(value) for _, value in pairs[2:5]] == [
        (0, 3, TIME),
        (0, 1, TIME),
        (0, 1, TIME),
    ]


def test_partitions_without_rows_are_left_out(tmp_path: Path) -> None:
    file = written(tmp_path, {1: [], 2: [(b"k", b"v")], 3: []})
    assert [part.partition for part in file.partitions] == [2]
    (tmp_path / "none").mkdir()
    assert written(tmp_path / "none", {}).partitions == ()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({1: [(b"a", b"1"), (b"a", b"2")]}, "key 'a' comes twice in partition 1"),
        (
            {1: [(b"b", b"1"), (b"a", b"2")]},
            "of partition 1 are out of order: 'a' comes behind 'b'",
        ),
        ({1: [], 2: [(b"a", b"1")], 0: [(b"a", b"1")]}, "partition 0 comes behind 2"),
    ],
)
@pytest.mark.parametrize("block", [1, 1000])
def test_keys_that_are_not_ascending_are_refused(
    tmp_path: Path,
    rows: dict[int, list[tuple[bytes, bytes]]],
    message: str,
    block: int,
) -> None:
    with pytest.raises(UsageError, match=message):
        written(tmp_path, rows, block_bytes=block)


def test_a_file_is_never_written_twice(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(UsageError, match="there already"):
        written(tmp_path)


# ------------------------------------------------------------------------------------- damage


def test_any_flipped_bit_and_any_other_length_is_found_before_lmdb_looks(tmp_path: Path) -> None:
    file = written(tmp_path)
    path = tmp_path / file.name
    whole = path.read_bytes()
    rng = random.Random(7)
    for _ in range(50):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match="not as it was written"):
            check_file(str(tmp_path), file)
    for other in (b"", whole[:-1], whole + b"\0"):
        path.write_bytes(other)
        with pytest.raises(CorruptDataError, match="not as it was written"):
            check_file(str(tmp_path), file)
    path.unlink()
    with pytest.raises(CorruptDataError, match="is gone"):
        check_file(str(tmp_path), file)


def change(path: Path, name: str, value: bytes | None) -> None:
    """Replace, or remove, what a file has under the key of partition 3 with this name."""
    kv = open_file(str(path), 1 << 30, read_only=False)
    key = b"\0\0\0\3\0\0\0\0" + name.encode()
    with kv.write() as txn:
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
    kv.close()


@pytest.mark.parametrize("name", ["", "a", "b", "c"])
def test_a_file_that_lmdb_finds_sound_and_the_manifest_does_not(tmp_path: Path, name: str) -> None:
    file = written(tmp_path)
    path = tmp_path / file.name
    kv = open_file(str(path), 1 << 30, read_only=True)
    stored = kv.begin().get(b"\0\0\0\3\0\0\0\0b") or b""
    kv.close()
    damages: list[bytes | None] = [b"short", stored[:-1] + b"?"]
    for value in damages if name == "c" else [*damages, None]:
        change(path, name, value)
        with pytest.raises(CorruptDataError):
            list(read_part(str(path), file.partitions[0]))
        path.unlink()
        written(tmp_path)


def test_a_partition_that_the_manifest_tells_otherwise_is_damage(tmp_path: Path) -> None:
    file = written(tmp_path)
    part = file.partitions[0]
    for other in (
        replace(part, rows=2),
        replace(part, rows=4),
        replace(part, digest=part.digest ^ 1),
        replace(part, first_key=b"0"),
        replace(part, last_key=b"0"),
        replace(part, partition=2),
        replace(part, partition=5000),
    ):
        with pytest.raises(CorruptDataError, match="not what the manifest says"):
            list(read_part(str(tmp_path / file.name), other))


# ----------------------------------------------------------------------------------- manifest


@pytest.mark.parametrize(
    ("flags", "refusal"), [(4, FormatVersionError), (1, CorruptDataError), (5, FormatVersionError)]
)
def test_a_load_holds_no_deletes_and_no_values_of_a_later_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, refusal: type[Exception]
) -> None:
    def flagged_run(values: list[bytes], epoch: int, first: int, time: int) -> list[bytes]:
        return [
            value + pack_trailer(flags, epoch, number, time)
            for number, value in enumerate(values, first)
        ]

    monkeypatch.setattr(load_files, "stored_run", flagged_run)
    file = written(tmp_path)
    with pytest.raises(refusal, match=r"later version|is not what the manifest says"):
        read(tmp_path, file)


def test_the_manifest_that_is_written_is_read(tmp_path: Path) -> None:
    told = manifest(written(tmp_path))
    write_load_manifest(str(tmp_path), told)
    assert read_load_manifest(str(tmp_path)) == told
    assert told.rows == 2004
    (tmp_path / "manifest.tmp").write_text("what a death has left")
    write_load_manifest(str(tmp_path), manifest())
    assert read_load_manifest(str(tmp_path)) == manifest()
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "part-0.mdb"]


def test_without_a_manifest_there_is_no_load(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no load"):
        read_load_manifest(str(tmp_path))


def test_every_change_of_a_manifest_is_found(tmp_path: Path) -> None:
    text = manifest(written(tmp_path, {3: ROWS[3]})).to_json()
    for place in range(len(text) - 1):
        with pytest.raises((CorruptDataError, FormatVersionError)):
            LoadManifest.from_json(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :])
        with pytest.raises(CorruptDataError):
            LoadManifest.from_json(text[:place])


def test_an_unknown_format_is_told_as_such() -> None:
    fields = {**json.loads(manifest().to_json()), "format": 2}
    with pytest.raises(FormatVersionError, match="format 2") as caught:
        LoadManifest.from_json(json.dumps(fields))
    assert (caught.value.found, caught.value.supported) == (2, 1)


def _with_part(told: LoadManifest, **fields: Any) -> LoadManifest:
    (file,) = told.files
    first, *others = file.partitions
    parts = (replace(first, **fields), *others)
    return replace(told, files=(replace(file, partitions=parts),))


WRONG: list[Callable[[LoadManifest], LoadManifest]] = [
    lambda told: _with_part(told, rows=0),
    lambda told: _with_part(told, rows=-1),
    lambda told: _with_part(told, digest=-1),
    lambda told: _with_part(told, digest=1 << 200),
    lambda told: replace(told, id=b"short"),
    lambda told: replace(told, partitions=0),
    lambda told: replace(told, partitions=40_000),
    lambda told: replace(told, partitions=1000),
    lambda told: replace(told, files=told.files * 2),
    lambda told: replace(told, files=(told.files[0], replace(told.files[0], name="other"))),
    lambda told: replace(told, files=(replace(told.files[0], name="../part-0.mdb"),)),
    lambda told: replace(told, files=(replace(told.files[0], name=".."),)),
]


@pytest.mark.parametrize("change", WRONG)
def test_a_manifest_that_cannot_be_is_refused(
    tmp_path: Path, change: Callable[[LoadManifest], LoadManifest]
) -> None:
    told = manifest(written(tmp_path))
    with pytest.raises(CorruptDataError):
        LoadManifest.from_json(change(told).to_json())
