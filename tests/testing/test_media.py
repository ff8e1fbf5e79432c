"""What a power cut, and a failed sync, may leave of a file and of a directory."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tidelog.testing.media import CRASH_OUTCOMES, FileWrite, Folder, Inode, NameChange, Resize

SEEDS = range(300)


def found(inode: Inode, outcome: str) -> Iterator[bytes]:
    """The contents that a power cut leaves, over many seeds."""
    for seed in SEEDS:
        yield bytes(inode.after_crash(outcome, random.Random(seed)).durable)


def found_names(folder: Folder, outcome: str) -> set[tuple[str, ...]]:
    """The sets of names that a power cut leaves, over many seeds."""
    return {tuple(folder.after_crash(outcome, random.Random(seed), {}).durable) for seed in SEEDS}


def inode_with(*unsynced: FileWrite | Resize, synced: bytes = b"") -> Inode:
    inode = Inode(synced)
    for change in unsynced:
        inode.change(change)
    return inode


# ------------------------------------------------------------------ files


def test_synced_bytes_survive_every_outcome() -> None:
    inode = inode_with(FileWrite(0, b"abc"))
    inode.sync()
    for outcome in CRASH_OUTCOMES:
        assert set(found(inode, outcome)) == {b"abc"}


def test_a_sync_covers_only_what_was_written_before_it() -> None:
    inode = inode_with(FileWrite(0, b"abc"))
    inode.sync()
    inode.change(FileWrite(3, b"def"))
    assert set(found(inode, "lost")) == {b"abc"}
    assert set(found(inode, "kept")) == {b"abcdef"}


def test_a_torn_write_lands_up_to_any_byte() -> None:
    inode = inode_with(FileWrite(3, b"def"), synced=b"abc")
    whole = {b"abc", b"abcd", b"abcde", b"abcdef"}
    zeros = {b"abc\0", b"abc\0\0", b"abc\0\0\0", b"abcd\0", b"abcd\0\0", b"abcde\0"}
    contents = set(found(inode, "torn"))
    assert whole <= contents <= whole | zeros
    assert contents & zeros, "a size is never ahead of its data"


def test_reordered_writes_land_in_any_subset() -> None:
    inode = inode_with(FileWrite(0, b"A"), FileWrite(1, b"B"), synced=b"ab")
    assert set(found(inode, "reordered")) == {b"ab", b"Ab", b"aB", b"AB"}


def test_reordered_sectors_of_one_write_land_apart() -> None:
    inode = inode_with(FileWrite(0, b"x" * 1024), synced=bytes(1024))
    halves = {(content[:512].strip(b"\0"), content[512:].strip(b"\0")) for content in
              found(inode, "reordered")}  # fmt: skip
    assert (b"x" * 512, b"") in halves
    assert (b"", b"x" * 512) in halves


def test_a_hole_reads_as_zeros() -> None:
    inode = inode_with(FileWrite(3, b"x"))
    assert bytes(inode.cached) == b"\0\0\0x"
    assert set(found(inode, "kept")) == {b"\0\0\0x"}


def test_a_cut_is_lost_or_kept_like_a_write() -> None:
    inode = inode_with(Resize(1), synced=b"abc")
    assert bytes(inode.cached) == b"a"
    assert set(found(inode, "lost")) == {b"abc"}
    assert set(found(inode, "kept")) == {b"a"}
    assert set(found(inode, "torn")) == set(found(inode, "reordered")) == {b"abc", b"a"}


def test_a_failed_sync_makes_pages_clean_whatever_became_of_them() -> None:
    fates = set()
    for seed in SEEDS:
        inode = inode_with(FileWrite(0, b"new"), synced=b"old")
        inode.fail_sync(random.Random(seed))
        inode.sync()
        fates.add((bytes(inode.cached), bytes(inode.durable)))
    assert fates == {(b"new", b"new"), (b"new", b"old"), (b"old", b"old")}


def test_a_page_that_grew_the_file_reads_as_zeros_once_dropped() -> None:
    contents = set()
    for seed in SEEDS:
        inode = inode_with(FileWrite(3, b"new"), synced=b"old")
        inode.fail_sync(random.Random(seed))
        contents.add(bytes(inode.cached))
    assert contents == {b"oldnew", b"old\0\0\0"}


def test_a_sync_cut_short_leaves_the_rest_unsynced() -> None:
    states = set()
    for seed in SEEDS:
        inode = inode_with(
            FileWrite(0, b"A"), FileWrite(9000, b"B"), synced=b"a" + bytes(8999) + b"b"
        )
        inode.sync_partly(random.Random(seed))
        states.add(bytes(inode.durable[::9000]))
        inode.sync()
        assert bytes(inode.durable[::9000]) == b"AB"
    assert states == {b"ab", b"Ab", b"aB", b"AB"}


def test_an_older_write_never_lands_on_a_newer_one() -> None:
    # A sync that was cut short made a frame durable and left the zeros that were written before
    # it for later, so that the power cut wiped the frame out.
    states = set()
    for seed in SEEDS:
        inode = inode_with(FileWrite(0, b"old"), FileWrite(0, b"new"), Resize(3), synced=b"---")
        inode.sync_partly(random.Random(seed))
        states.add(bytes(inode.durable))
        assert bytes(inode.after_crash("kept", random.Random(1)).durable) == b"new"
    assert states == {b"---", b"old", b"new"}


def test_outcomes_depend_on_the_generator_alone() -> None:
    inode = inode_with(*(FileWrite(n * 700, b"x" * 700) for n in range(20)))
    for outcome in CRASH_OUTCOMES:
        assert list(found(inode, outcome)) == list(found(inode, outcome))


def test_an_unknown_outcome_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="melted"):
        inode_with(FileWrite(0, b"x")).after_crash("melted", random.Random(1))


# ------------------------------------------------------------------ directories


def test_names_survive_only_once_the_directory_was_synced() -> None:
    folder = Folder()
    folder.change(NameChange(None, "a", Inode()))
    assert found_names(folder, "lost") == {()}
    assert found_names(folder, "kept") == {("a",)}
    folder.sync()
    for outcome in CRASH_OUTCOMES:
        assert found_names(folder, outcome) == {("a",)}


def test_a_rename_is_atomic_and_may_be_lost() -> None:
    folder = Folder({"new": Inode(b"2"), "old": Inode(b"1")})
    folder.change(NameChange("new", "old", folder.cached["new"]))
    for outcome in ("torn", "reordered"):
        assert found_names(folder, outcome) == {("new", "old"), ("old",)}


def test_torn_names_land_in_order_and_reordered_ones_in_any() -> None:
    folder = Folder()
    for name in "ab":
        folder.change(NameChange(None, name, Inode()))
    assert found_names(folder, "torn") == {(), ("a",), ("a", "b")}
    assert found_names(folder, "reordered") == {(), ("a",), ("b",), ("a", "b")}


def test_changes_of_one_name_are_never_reordered() -> None:
    folder = Folder()
    inode = Inode()
    folder.change(NameChange(None, "a", inode))
    folder.change(NameChange("a", "b", inode))
    folder.change(NameChange("b", None, None))
    assert found_names(folder, "reordered") == {(), ("a",), ("b",)}


def test_a_durable_name_may_lead_to_an_empty_file() -> None:
    folder = Folder()
    folder.change(NameChange(None, "a", inode_with(FileWrite(0, b"abc"))))
    folder.sync()
    after = folder.after_crash("lost", random.Random(1), {})
    node = after.durable["a"]
    assert isinstance(node, Inode)
    assert bytes(node.durable) == b""


def test_a_failed_sync_of_names_leaves_them_to_a_later_one() -> None:
    kept = set()
    for seed in SEEDS:
        folder = Folder()
        folder.change(NameChange(None, "a", Inode()))
        folder.fail_sync(random.Random(seed))
        kept.add(tuple(folder.durable))
        folder.sync()
        assert list(folder.cached) == list(folder.durable) == ["a"]
    assert kept == {(), ("a",)}
