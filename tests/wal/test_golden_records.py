"""The bytes of one record of each type: here, in the documents, and in the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support.documents import ROOT
from support.golden_records import OF_COPIES, SEAL, examples, golden
from tidelog.wal.records import (
    RECORD_FORMS,
    RECORD_OVERHEAD,
    RecordType,
    decode_payload,
    decode_seal,
)

GOLDEN = Path(__file__).parent / "golden_records.txt"


def written() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text("utf-8").splitlines())
    return {name: bytes.fromhex(data) for name, data in lines}


def documented() -> dict[str, bytes]:
    """The bytes that docs/wal-format.md explains, by record."""
    text = (ROOT / "docs/wal-format.md").read_text("utf-8")
    (block,) = re.findall(r'RECORDS = """\n(.*?)\n"""', text, re.DOTALL)
    found: dict[str, bytes] = {}
    for part in block.split("\n\n"):
        name, *lines = part.splitlines()
        found[name] = b"".join(bytes.fromhex(line.partition("|")[0]) for line in lines)
    return found


def test_there_is_an_example_of_each_type() -> None:
    assert set(examples()) == {row.kind for row in RECORD_FORMS}
    assert set(golden()) == set(RecordType)
    assert set(written()) == set(documented()) == {kind.name for kind in RecordType}
    assert set(examples()) > OF_COPIES


@pytest.mark.parametrize("kind", RecordType, ids=lambda kind: kind.name)
def test_a_record_is_encoded_as_it_always_was(kind: RecordType) -> None:
    made = golden()
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        lines = (f"{one.name} {made[one].hex()}\n" for one in sorted(made))
        GOLDEN.write_text("".join(lines), "utf-8")
        pytest.fail(f"{GOLDEN.name} was written anew: read the difference, then run without it")
    assert made[kind].hex() == written()[kind.name].hex()
    assert documented()[kind.name].hex() == written()[kind.name].hex()


@pytest.mark.parametrize("kind", RecordType, ids=lambda kind: kind.name)
def test_a_record_is_decoded_as_it_always_was(kind: RecordType) -> None:
    data = written()[kind.name]
    assert data[4] == kind
    assert int.from_bytes(data[:4], "big") == len(data) - RECORD_OVERHEAD
    if kind is RecordType.SEAL:
        assert decode_seal(data) == SEAL
    else:
        assert decode_payload(data) == [examples()[kind]]
