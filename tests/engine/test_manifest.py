from __future__ import annotations

import json
from dataclasses import replace

import pytest
from crc32c import crc32c

from tidelog.affinity.errors import CorruptDataError, FormatVersionError
from tidelog.affinity.partitions import Space
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.manifest import Manifest, decode, encode
from tidelog.testing import FaultyDisk, crash_points

MANIFEST = Manifest(
    store_id="ab" * 16,
    history_id="cd" * 16,
    log_id="ef" * 16,
    logs=[("00" * 16, 0), ("ef" * 16, 12345)],
    partitions=16,
    clean_end=777,
    kv_engine="lmdb-0.9/format-1",
    spaces=[Space(0, 16)],
)
NEXT = replace(MANIFEST, clean_end=None)


def changed(**fields: object) -> bytes:
    """The bytes of a manifest with other fields, and a checksum that is right."""
    line = json.dumps({**json.loads(encode(MANIFEST).splitlines()[0]), **fields}).encode()
    return line + b"\n%08x\n" % crc32c(line)


def without(name: str) -> bytes:
    fields = json.loads(encode(MANIFEST).splitlines()[0])
    del fields[name]
    line = json.dumps(fields).encode()
    return line + b"\n%08x\n" % crc32c(line)


def test_what_is_written_is_read() -> None:
    assert decode(encode(MANIFEST)) == MANIFEST
    everything = replace(
        MANIFEST, copied=True, rebuild=True, member="m", boot=3, nonces=["n"], cluster="c"
    )
    assert decode(encode(everything)) == everything


def test_a_manifest_that_ends_early_is_none() -> None:
    data = encode(MANIFEST)
    for length in range(len(data) - 1):
        with pytest.raises(CorruptDataError):
            decode(data[:length])
    # Only the last line's end is not needed.
    assert decode(data[:-1]) == MANIFEST


def test_every_flipped_bit_is_found() -> None:
    data = encode(MANIFEST)
    for bit in range(8 * (len(data) - 1)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode(bytes(damaged))


@pytest.mark.parametrize("fields", [{"format": 2}, {"required": 4}, {"format": 0}])
def test_a_newer_format_or_an_unknown_feature_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(FormatVersionError) as caught:
        decode(changed(**fields))
    assert caught.value.supported == manifests.STORE_FORMAT


@pytest.mark.parametrize("fields", [{"compatible": 8}, {"read_only": 8}, {"later": "field"}])
def test_what_a_later_minor_version_adds_is_passed_over(fields: dict[str, object]) -> None:
    assert decode(changed(**fields)).store_id == MANIFEST.store_id


@pytest.mark.parametrize(
    "data",
    [
        without("format"),
        without("store_id"),
        changed(required="many"),
        changed(logs=[[1]]),
        changed(spaces=None),
        b"[]\n%08x\n" % crc32c(b"[]"),
        b"7\n%08x\n" % crc32c(b"7"),
        b"{\n%08x\n" % crc32c(b"{"),
        b"",
    ],
)
def test_what_is_whole_and_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"store_id": "abcd"},
        {"history_id": 7},
        {"log_id": "no hexadecimal number at all...."},
        {"logs": [["abcd", 0]]},
        {"logs": []},
        {"spaces": []},
        {"spaces": [[0, 15, 0]]},
        {"spaces": [[0, 8, 0], [9, 7, 0]]},
        {"spaces": [[1, 16, 0]]},
        {"partitions": 0},
        {"partitions": -4},
        {"partitions": 1 << 20},
        {"partitions": True},
        {"partitions": "4"},
        {"partitions": 4.0},
        {"clean_end": -1},
        {"clean_end": "7"},
        {"copied": 1},
        {"rebuild": None},
    ],
)
def test_a_field_of_another_kind_is_damage(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError, match="lacks something"):
        decode(changed(**fields))


def test_replacing_leaves_the_old_one_or_the_new_one_wherever_the_power_goes() -> None:
    start = FaultyDisk()
    manifests.write(start.directory("/"), MANIFEST)

    def scenario(disk: FaultyDisk, acknowledge: object) -> None:
        manifests.write(disk.directory("/"), NEXT)

    seen = []
    for point in crash_points(scenario, start=start):
        found = manifests.read(point.disk.directory("/"))
        assert found in (MANIFEST, NEXT), point
        seen.append(found == NEXT)
        # And whatever the crash left behind, the next replacement works.
        manifests.write(point.disk.directory("/"), NEXT)
        assert manifests.read(point.disk.directory("/")) == NEXT
        assert point.disk.paths() == ["/manifest"]
    assert {True, False} == set(seen)


def test_a_manifest_that_was_replaced_is_durable() -> None:
    disk = FaultyDisk()
    manifests.write(disk.directory("/"), MANIFEST)
    manifests.write(disk.directory("/"), NEXT)
    assert manifests.read(disk.crash("lost").directory("/")) == NEXT


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_an_error_while_replacing_leaves_the_old_one(kind: str) -> None:
    disk = FaultyDisk()
    manifests.write(disk.directory("/"), MANIFEST)
    disk.fail_at(disk.operations + 1, "EIO", kind=kind)
    with pytest.raises(OSError, match="Input/output"):
        manifests.write(disk.directory("/"), NEXT)
    assert manifests.read(disk.directory("/")) == MANIFEST


def test_a_copy_that_becomes_a_store_ends_cleanly_where_its_own_log_begins() -> None:
    disk = FaultyDisk()
    keeper = manifests.ManifestKeeper(disk.directory("/"), replace(MANIFEST, copied=True))
    keeper.become_a_store("ab" * 16, "cd" * 16, 20_000)
    found = manifests.read(disk.directory("/"))
    assert (found.log_id, found.history_id) == ("ab" * 16, "cd" * 16)
    assert found.logs == [*MANIFEST.logs, ("ab" * 16, 20_000)]
    assert (found.copied, found.clean_end) == (False, 20_000)
