"""Pages of LMDB, made by hand: which are sound, and what is left of the others."""

from __future__ import annotations

from itertools import count

import pytest

from tidelog.affinity.errors import CorruptDataError
from tidelog.engine.system.lmdb_pages import HEADER, LEAF, NO_PAGE, NODE, PAGE, Tree, check_pages
from tidelog.engine.system.lmdb_remains import Remains

PAIRS = [(b"a", b"one"), (b"b", b"two"), (b"cc", b"three")]
FREE = Tree("free", NO_PAGE, 0, 0)
MAIN = Tree("main", 2, 1, len(PAIRS))


def file_of(
    *, lower: int = 0, upper: int = 0, parity: int = 0, places: dict[int, int] | None = None
) -> bytes:
    """A file whose data is one leaf; what is given is added to what its header says."""
    page = bytearray(PAGE)
    found, at = [], PAGE
    for key, value in PAIRS:
        node = NODE.pack(len(value), 0, 0, len(key)) + key + value
        at -= len(node) + len(node) % 2
        page[at : at + len(node)] = node
        found.append(at)
    for index, place in (places or {}).items():
        found[index] = place
    free = HEADER.size + 2 * len(PAIRS) + lower + parity
    HEADER.pack_into(page, 0, 2, 0, LEAF, free, at + upper)
    for offset, place in zip(count(HEADER.size, 2), found, strict=False):
        page[offset : offset + 2] = place.to_bytes(2, "little")
    return bytes(2 * PAGE) + bytes(page) + bytes(PAGE)


def test_a_sound_page_is_read_whole() -> None:
    check_pages(file_of(), 4, FREE, MAIN)
    remains = Remains(file_of(), MAIN)
    assert list(remains.pairs()) == PAIRS
    assert remains.lost == []


@pytest.mark.parametrize(
    "damaged",
    [
        file_of(parity=1),
        file_of(lower=-2 * len(PAIRS)),
        file_of(upper=PAGE),
        file_of(upper=-PAGE + 60),
    ],
    ids=["odd", "no nodes", "beyond the page", "overlapping"],
)
def test_a_page_whose_free_space_cannot_be_is_damaged(damaged: bytes) -> None:
    with pytest.raises(CorruptDataError, match="its free space is from"):
        check_pages(damaged, 4, FREE, MAIN)
    remains = Remains(damaged, MAIN)
    assert list(remains.pairs()) == []
    assert [(lost.page, lost.why.partition(" is ")[0]) for lost in remains.lost] == [
        (2, "its free space")
    ]


@pytest.mark.parametrize("index", range(len(PAIRS)))
@pytest.mark.parametrize("place", [HEADER.size, PAGE - NODE.size + 2])
def test_a_node_outside_of_its_page_is_damage(index: int, place: int) -> None:
    damaged = file_of(places={index: place})
    with pytest.raises(CorruptDataError, match="a node lies outside"):
        check_pages(damaged, 4, FREE, MAIN)
