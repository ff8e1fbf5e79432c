"""The bytes of pairs, marks, counters and outcomes: here, in the documents, and in the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support import golden_data
from support.documents import ROOT
from support.golden_data import FULL_KEY, golden
from support.golden_records import TIME
from tidelog.checkpoints.marks import PartitionMark, StoreMark
from tidelog.engine.commit.outcomes import decode_outcome
from tidelog.engine.data.stored import check_pair, is_tombstone, user_value, version_of
from tidelog.tx.counter import PartitionUpdateCounter

GOLDEN = Path(__file__).parent / "golden_data.txt"
NAMES = sorted(golden())


def written() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text("utf-8").splitlines())
    return {name: bytes.fromhex(data) for name, data in lines}


def documented() -> dict[str, bytes]:
    """The bytes that docs/data-format.md explains, by name."""
    text = (ROOT / "docs/data-format.md").read_text("utf-8")
    (block,) = re.findall(r'DATA = """\n(.*?)\n"""', text, re.DOTALL)
    found: dict[str, bytes] = {}
    for part in block.split("\n\n"):
        name, *lines = part.splitlines()
        found[name] = b"".join(bytes.fromhex(line.partition("|")[0]) for line in lines)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_data_is_encoded_as_it_always_was(name: str) -> None:
    made = golden()
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        GOLDEN.write_text("".join(f"{one} {data.hex()}\n" for one, data in made.items()), "utf-8")
        pytest.fail(f"{GOLDEN.name} was written anew: read the difference, then run without it")
    assert set(made) == set(written()) == set(documented())
    assert made[name].hex() == written()[name].hex() == documented()[name].hex()


def test_data_is_decoded_as_it_always_was() -> None:
    data = written()
    assert PartitionUpdateCounter.from_bytes(data["COUNTER"]) == golden_data.COUNTER
    assert PartitionMark.from_bytes(data["PARTITION"]) == golden_data.PARTITION
    assert StoreMark.from_bytes(data["STORE"]) == golden_data.STORE
    assert decode_outcome(data["OUTCOME"]) == golden_data.OUTCOME
    for name, number, value in (("PAIR", 9, b"12"), ("TOMBSTONE", 10, None)):
        stored = data[name].removeprefix(FULL_KEY)
        check_pair(FULL_KEY, stored)
        assert user_value(FULL_KEY, stored) == value
        assert is_tombstone(stored) is (value is None)
        assert version_of(stored) == (1, number, TIME)
