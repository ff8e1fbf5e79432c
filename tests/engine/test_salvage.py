"""What is salvaged of damaged stores, and whether what is lost is told: against a model."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.lived import Lived, live
from support.real_stores import digests, opened
from tidelog import codecs
from tidelog.affinity.errors import NotFoundError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.engine.upkeep.salvage import Lost, Salvaged, salvage

PARTITIONS = 4
Contents = dict[str, dict[bytes, bytes]]


def contents_of(found: Salvaged) -> Contents:
    contents: Contents = {record.name: {} for record in found.maps.values()}
    for namespace, key, value in found.pairs():
        pairs = contents[found.maps[namespace].name]
        assert key not in pairs
        pairs[key] = value
    return contents


def is_told(lost: Lost, name: str, key: bytes) -> bool:
    """Whether something that is lost says that a key of a map may be missing or outdated."""
    if lost.harmless:
        return False
    if lost.kind == "value":
        return (lost.map, lost.key) == (name, key)
    if lost.kind == "rows":
        return lost.map == name
    return lost.partition is None or lost.partition == partition_of(key, Space(0, PARTITIONS))


@dataclass
class Figures:
    """What became of a number of damaged stores."""

    complete: int = 0
    told: int = 0
    kinds: set[str] = field(default_factory=set)


def check(made: Lived, what: str, figures: Figures | None = None) -> Salvaged:
    """Salvage a store and compare: what differs from the model has to be told."""
    found = salvage(str(made.path))
    contents = contents_of(found)
    for pairs in contents.values():
        assert made.ever.issuperset(pairs.items()), what
    if found.complete:
        assert contents == made.maps, what
    for name in {*contents, *made.maps}:
        now, before = contents.get(name, {}), made.maps.get(name, {})
        for key in {*now, *before}:
            if now.get(key) != before.get(key):
                assert any(is_told(one, name, key) for one in found.lost), (what, name, key)
    if figures is not None:
        figures.complete += found.complete
        figures.told += not found.complete
        figures.kinds |= {one.kind for one in found.lost}
    return found


def flips(file: Path, rng: random.Random, count: int) -> Iterator[int]:
    """Flip one bit of a file at a time, and put it back."""
    size = file.stat().st_size
    with open(file, "r+b", buffering=0) as stream:
        for _ in range(count):
            place, bit = rng.randrange(size), rng.randrange(8)
            stream.seek(place)
            before = stream.read(1)
            stream.seek(place)
            stream.write(bytes((before[0] ^ 1 << bit,)))
            yield place * 8 + bit
            stream.seek(place)
            stream.write(before)


def segments_of(made: Lived) -> list[Path]:
    return sorted((made.path / "wal").glob("*.log"))


def test_a_whole_store_is_salvaged_whole_and_left_as_it_is(tmp_path: Path) -> None:
    for seed in range(2):
        made = live(tmp_path / f"{seed}.tl", seed, steps=25, crash_at_end=seed == 1)
        before = digests(made.path)
        found = check(made, "nothing")
        assert found.lost == []
        assert digests(made.path) == before


@pytest.mark.slow
@pytest.mark.parametrize("retain_bytes", [1 << 30, 100 << 10])
@pytest.mark.parametrize("seed", range(4))
def test_any_flipped_bit_is_told_or_does_no_harm(
    seed: int, retain_bytes: int, tmp_path: Path
) -> None:
    made = live(
        tmp_path / "store.tl", seed, steps=30, retain_bytes=retain_bytes, value_bytes=1500,
        crash_at_end=seed % 2 == 1,
    )  # fmt: skip
    rng, figures = random.Random(seed), Figures()
    for file in (made.path / "data" / "data.mdb", *segments_of(made)):
        for bit in flips(file, rng, 40):
            check(made, f"{file.name} bit {bit} seed {seed}: {made.done}", figures)
    assert figures.complete


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 140))
def test_any_flipped_bit_is_told_or_does_no_harm_at_length(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    made = live(
        tmp_path / "store.tl", seed, steps=rng.randrange(5, 80), value_bytes=rng.choice([50, 3000]),
        retain_bytes=rng.choice([1 << 30, 100 << 10]), crash_at_end=rng.random() < 0.5,
    )  # fmt: skip
    for file in (made.path / "data" / "data.mdb", *segments_of(made)):
        for bit in flips(file, rng, 200):
            check(made, f"{file.name} bit {bit} seed {seed}: {made.done}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_files_that_are_gone_are_told(seed: int, tmp_path: Path) -> None:
    made = live(tmp_path / "store.tl", seed, steps=30, value_bytes=1500, retain_bytes=100 << 10)
    aside = tmp_path / "aside"
    for file in (made.path / "data" / "data.mdb", made.path / "manifest", *segments_of(made)):
        shutil.move(file, aside)
        check(made, f"{file.name} gone, seed {seed}: {made.done}")
        file.write_bytes(aside.read_bytes()[: aside.stat().st_size // 2])
        check(made, f"half of {file.name}, seed {seed}: {made.done}")
        shutil.move(aside, file)


def plain(path: Path, *, close: bool) -> Lived:
    """A store with a log that goes back to its beginning, a checkpoint in its middle."""
    made = Lived(path, maps={"m": {}})
    db = opened(path, partitions=PARTITIONS, segment_bytes=128 << 10)
    mapping = db.map("m", key=codecs.Bytes, value=codecs.Bytes)
    for number in range(200):
        key, value = b"%05d" % number, b"value %05d " % number + bytes(1000)
        mapping[key] = made.maps["m"][key] = value
        made.ever.add((key, value))
        if number == 150:
            db.checkpoint()
    if close:
        db.close()
    else:
        session_of(db).abandon()
    return made


@pytest.mark.parametrize("close", [True, False])
def test_a_store_without_its_data_file_is_rebuilt_from_a_whole_log(
    close: bool, tmp_path: Path
) -> None:
    made = plain(tmp_path / "store.tl", close=close)
    (made.path / "data" / "data.mdb").write_bytes(b"\xff" * 9000)
    found = check(made, "data file")
    assert contents_of(found) == made.maps


def test_a_store_without_its_manifest_is_salvaged(tmp_path: Path) -> None:
    made = plain(tmp_path / "store.tl", close=True)
    (made.path / "manifest").unlink()
    found = check(made, "manifest")
    assert found.complete
    assert [one.kind for one in found.lost] == ["file"]


def test_a_value_that_is_damaged_in_the_data_file_is_taken_from_the_log(tmp_path: Path) -> None:
    made = plain(tmp_path / "store.tl", close=True)
    file = made.path / "data" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"value 00007", b"valve 00007"))
    assert check(made, "value").complete


def test_a_value_that_only_the_data_file_had_is_told_by_its_key(tmp_path: Path) -> None:
    made = plain(tmp_path / "store.tl", close=True)
    segments_of(made)[0].unlink()
    file = made.path / "data" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"value 00007", b"valve 00007"))
    found = check(made, "value")
    (lost,) = [one for one in found.lost if not one.harmless]
    assert (lost.kind, lost.map, lost.key) == ("keys", "m", b"00007")
    assert "or that of another key there" in lost.text
    assert contents_of(found)["m"].keys() == made.maps["m"].keys() - {b"00007"}


def test_updates_that_only_a_damaged_frame_had_are_told_by_their_numbers(tmp_path: Path) -> None:
    made = plain(tmp_path / "store.tl", close=False)
    segment = segments_of(made)[-1]
    content = segment.read_bytes()
    assert b"value 00180" in content
    segment.write_bytes(content.replace(b"value 00180", b"valve 00180"))
    found = check(made, "frame")
    lost = [one for one in found.lost if one.kind == "updates"]
    assert [(one.partition, one.last - one.first) for one in lost if one.first and one.last] == [
        (partition_of(b"00180", Space(0, PARTITIONS)), 0)
    ]
    assert contents_of(found)["m"].keys() == made.maps["m"].keys() - {b"00180"}


def test_a_newest_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    made = plain(tmp_path / "store.tl", close=False)
    segments_of(made)[-1].unlink()
    found = check(made, "newest segment")
    (lost,) = [one for one in found.lost if not one.harmless]
    assert lost.kind == "log"
    assert "the segment behind it is missing" in lost.text


def gone(log: list[Path]) -> None:
    for file in log:
        file.unlink()


def emptied(log: list[Path]) -> None:
    for file in log:
        file.write_bytes(b"")


def zeroed(log: list[Path]) -> None:
    for file in log:
        file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("ruin", [gone, emptied, zeroed])
def test_a_log_that_is_gone_is_told(ruin: Callable[[list[Path]], None], tmp_path: Path) -> None:
    # What was committed behind the checkpoint was lost without a word.
    made = plain(tmp_path / "store.tl", close=False)
    ruin(segments_of(made))
    found = check(made, ruin.__name__)
    (lost,) = [one for one in found.lost if not one.harmless]
    assert lost.kind == "log"
    assert lost.text.startswith("all of the log behind position ")


@pytest.mark.parametrize("ruin", [gone, emptied, zeroed])
def test_a_log_of_a_closed_store_that_is_gone_had_nothing_behind_its_end(
    ruin: Callable[[list[Path]], None], tmp_path: Path
) -> None:
    made = plain(tmp_path / "store.tl", close=True)
    ruin(segments_of(made))
    found = check(made, ruin.__name__)
    assert contents_of(found) == made.maps
    assert not any("behind position" in one.text for one in found.lost)


def test_a_log_that_is_gone_before_the_first_checkpoint_is_told(tmp_path: Path) -> None:
    db = opened(tmp_path / "store.tl", partitions=PARTITIONS)
    db.map("m", key=codecs.Bytes, value=codecs.Bytes)[b"a"] = b"1"
    session_of(db).abandon()
    gone(sorted((tmp_path / "store.tl" / "wal").glob("*.log")))
    assert not salvage(str(tmp_path / "store.tl")).complete


def test_where_nothing_is_left_there_is_nothing_to_salvage(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        salvage(str(tmp_path))
    with pytest.raises(NotFoundError):
        salvage(str(tmp_path / "nix"))
