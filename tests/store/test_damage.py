"""Damage to any file of a closed store ends in right data or an error of Tidelog.

Never in a wrong value, a missing record, another kind of exception, or a file that a refused open
has changed.  What stays open is named in the tests of the data file below.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from support.damage_worker import EXPECTED, RIGHT, examine, keep_expected
from support.real_stores import TESTS, digests, expect_sound, opened

# A refused open may write who tried into the lock, and LMDB its table of readers.
TOUCHED = {"lock", "data/lock.mdb"}

Damage = Callable[[Path], None]


def build(path: Path, seed: int) -> None:
    """A store with checkpoints, several segments with indexes, and a tail behind the checkpoint."""
    chance = random.Random(seed)
    ids = []
    db = opened(path, partitions=3, durability="none", segment_bytes=1, retain_bytes=1 << 20)
    for round_ in range(9):
        for name in ("m", "n"):
            with db.transaction() as tx:
                for _ in range(60):
                    key = f"{name}{chance.randrange(300):03}".encode()
                    tx[db.map(name)][key] = chance.randbytes(chance.choice([3, 30, 900]))
                    tx[db.map(name)].discard(f"{name}{chance.randrange(300):03}".encode())
            assert tx.receipt is not None
            ids.append(tx.receipt.tx_id)
        if round_ == 5:
            db.checkpoint()
    with db.transaction(id=b"%016d" % seed) as tx:
        tx[db.map("m")][b"given"] = b"id"
    db.map("n").update_many({b"big": bytes(9000), b"huge": chance.randbytes(150_000)})
    keep_expected(db, path.parent, [*ids, b"%016d" % seed])
    db.close()
    expect_sound(path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, another one of the same shape, and what the first holds."""
    folder = tmp_path_factory.mktemp("built")
    for seed, name in enumerate(("other", "store")):
        build(folder / name, seed)
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(built, tmp_path / "built", symlinks=True)
    yield tmp_path / "built"
    shutil.rmtree(tmp_path / "built")


def names_of(folder: Path) -> list[str]:
    return sorted(digests(folder / "store"))


def expect_right_or_refused(folder: Path, damage: Damage, file: str, what: str) -> str:
    """Damage a fresh copy and look at it; the copy is gone afterwards."""
    store, kept = folder / "store", folder / "kept"
    if not kept.exists():
        shutil.copytree(store, kept, symlinks=True)
    damage(store / file)
    before = digests(store)
    try:
        verdict = examine(store, folder / EXPECTED)
    except Exception as error:
        verdict = f"FAILED {file}, {what}: {error!r}"
    after = digests(store)
    changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} - TOUCHED
    if verdict.startswith("refused") and changed:
        verdict = f"FAILED {file}, {what}: {sorted(changed)} changed by a refused open"
    shutil.rmtree(store)
    shutil.copytree(kept, store, symlinks=True)
    return verdict


# ------------------------------------------------------------------ ways to damage a file


def truncate(size: int) -> Damage:
    return lambda file: os.truncate(file, size)


def flip(bit: int) -> Damage:
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)

    return damage


def overwrite(offset: int, data: bytes) -> Damage:
    def damage(file: Path) -> None:
        with file.open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)

    return damage


def replace_by(data: bytes) -> Damage:
    def damage(file: Path) -> None:
        file.write_bytes(data)

    return damage


def append(data: bytes) -> Damage:
    def damage(file: Path) -> None:
        with file.open("ab") as stream:
            stream.write(data)

    return damage


def swap_with_other(file: Path) -> None:
    store = next(parent for parent in file.parents if parent.name == "store")
    twin = store.parent / "other" / file.relative_to(store)
    file.unlink()
    if twin.exists():
        shutil.copy(twin, file)


def swap_with_neighbour(file: Path) -> None:
    files = [other for other in file.parent.iterdir() if other.is_file()]
    names = sorted(other for other in files if other.suffix == file.suffix)
    neighbour = names[(names.index(file) + 1) % len(names)]
    mine, its = file.read_bytes(), neighbour.read_bytes()
    file.write_bytes(its)
    neighbour.write_bytes(mine)


def remove(file: Path) -> None:
    file.unlink()


def in_its_place(make: Callable[[Path], None]) -> Damage:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


def file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def link_elsewhere(file: Path) -> None:
    file.rename(file.parent / "elsewhere")
    file.symlink_to(file.parent / "elsewhere")


STRANGE: dict[str, Damage] = {
    "removed": remove,
    "a directory": in_its_place(Path.mkdir),
    "a FIFO": in_its_place(os.mkfifo),
    "a loop of links": in_its_place(lambda file: file.symlink_to(file)),
    "a link to nowhere": in_its_place(lambda file: file.symlink_to("nowhere")),
    "a link": link_elsewhere,
    "another store's": swap_with_other,
    "its neighbour's": swap_with_neighbour,
}


def of_content(data: bytes, chance: random.Random, flips: int) -> Iterator[tuple[str, Damage]]:
    """Ways to change the content of a file."""
    size = len(data)
    sizes = {0, 1, size // 2, max(size - 1, 0), *(chance.randrange(size + 1) for _ in range(2))}
    for cut in sorted(sizes):
        yield f"cut to {cut}", truncate(cut)
    for _ in range(flips if size else 0):
        bit = chance.randrange(size * 8)
        yield f"bit {bit}", flip(bit)
    for _ in range(2 if size else 0):
        offset = chance.randrange(size)
        yield f"zeros at {offset}", overwrite(offset, bytes(min(512, size - offset)))
        noise = chance.randbytes(min(64, size - offset))
        yield f"noise at {offset}", overwrite(offset, noise)
    yield "zeros only", replace_by(bytes(size))
    yield "noise only", replace_by(chance.randbytes(size))
    yield "noise behind", append(chance.randbytes(100))


def sweep(
    folder: Path, seed: int, flips: int, *, leave_out: Collection[str] = ()
) -> dict[str, set[str]]:
    """Damage every file but the data file in every way; return the first words of the verdicts."""
    chance = random.Random(seed)
    verdicts: dict[str, set[str]] = {}
    failures = []
    for file in names_of(folder):
        if file == "data/data.mdb" or file in leave_out:
            continue
        data = (folder / "store" / file).read_bytes()
        for what, damage in [*STRANGE.items(), *of_content(data, chance, flips)]:
            verdict = expect_right_or_refused(folder, damage, file, what)
            verdicts.setdefault(file, set()).add(verdict.split(":")[0])
            if verdict.startswith("FAILED"):
                failures.append(verdict)
    assert not failures, "\n".join(failures)
    return verdicts


@pytest.mark.slow
def test_damage_to_any_file_is_found_or_does_no_harm(folder: Path) -> None:
    logs, indexes = ([n for n in names_of(folder) if n.endswith(s)] for s in (".log", ".idx"))
    verdicts = sweep(folder, 1, 3, leave_out={*logs[1:-2], *indexes[1:]})
    assert "refused" in verdicts["manifest"]
    assert "refused" in verdicts[logs[-1]]
    assert verdicts[indexes[0]] == {"right"}
    assert verdicts["lock"] == verdicts["data/lock.mdb"] | {"right"}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 104))
def test_damage_to_any_file_is_found_or_does_no_harm_in_a_long_search(
    seed: int, folder: Path
) -> None:
    sweep(folder, seed, 60)


@pytest.mark.slow
def test_a_whole_folder_that_is_missing_is_an_error(folder: Path) -> None:
    for name in ("wal", "data", "readers"):
        verdict = expect_right_or_refused(folder, shutil.rmtree, name, "removed")
        assert verdict.split(":")[0] == ("right" if name == "readers" else "refused")
        verdict = expect_right_or_refused(folder, file_in_its_place, name, "a file")
        assert verdict.split(":")[0] == ("right" if name == "readers" else "refused")


def test_the_middle_segment_missing_is_named(folder: Path) -> None:
    numbers = sorted((folder / "store" / "wal").glob("*.log"))
    (folder / "store" / "data" / "data.mdb").unlink()
    numbers[1].unlink()
    verdict = examine(folder / "store", folder / EXPECTED)
    assert verdict.startswith("refused: CorruptLogError: segment 2")
    assert "missing" in verdict


def test_a_lost_data_file_is_made_again_from_the_log(folder: Path) -> None:
    (folder / "store" / "data" / "data.mdb").unlink()
    (folder / "store" / "data" / "lock.mdb").unlink()
    assert examine(folder / "store", folder / EXPECTED) == RIGHT
    expect_sound(folder / "store")


# ------------------------------------------------------------------ the data file


class Examiner:
    """Another process that looks at stores; started again when it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, store: Path) -> str | int:
        """Return the verdict, or the signal that ended the process."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.damage_worker"],
                cwd=TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{store}\n")
        process.stdin.flush()
        verdict = process.stdout.readline()
        if verdict:
            return verdict.rstrip()
        self.end()
        return -process.returncode

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


@pytest.fixture
def examiner() -> Iterator[Examiner]:
    found = Examiner()
    yield found
    found.end()


def sweep_data(
    folder: Path, examiner: Examiner, damages: list[tuple[str, Damage]]
) -> dict[str, int]:
    """Damage the data file in each way; return how often each first word was the verdict."""
    store = folder / "store"
    kept = store / "data" / "kept"
    file = store / "data" / "data.mdb"
    shutil.copytree(store, folder / "kept", symlinks=True)
    counts: dict[str, int] = {}
    assert not kept.exists()
    for what, damage in damages:
        damage(file)
        verdict = examiner.ask(store)
        word = f"signal {verdict}" if isinstance(verdict, int) else verdict.split(":")[0]
        assert not word.startswith("FAILED"), f"{what}: {verdict}"
        counts[word] = counts.get(word, 0) + 1
        shutil.rmtree(store)
        shutil.copytree(folder / "kept", store, symlinks=True)
    return counts


def sectors(data: bytes, chance: random.Random, count: int) -> list[tuple[str, Damage]]:
    """Sectors of zeros, as a disk loses them."""
    offsets = [chance.randrange(len(data) // 512) * 512 for _ in range(count)]
    return [(f"sector {at} zeroed", overwrite(at, bytes(512))) for at in offsets]


def flips(data: bytes, chance: random.Random, count: int) -> list[tuple[str, Damage]]:
    bits = [chance.randrange(len(data) * 8) for _ in range(count)]
    return [(f"bit {bit}", flip(bit)) for bit in bits]


def noise(data: bytes, chance: random.Random, count: int) -> list[tuple[str, Damage]]:
    offsets = [chance.randrange(len(data) - 64) for _ in range(count)]
    return [(f"noise at {at}", overwrite(at, chance.randbytes(64))) for at in offsets]


def cuts(data: bytes, chance: random.Random, count: int) -> list[tuple[str, Damage]]:
    sizes = [0, 1, 4096, 8192, len(data) // 2, len(data) - 1, len(data) - 4096]
    sizes += [chance.randrange(len(data)) for _ in range(count)]
    return [(f"cut to {size}", truncate(size)) for size in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("ways", [flips, sectors, noise, cuts])
def test_damage_to_the_data_file_is_found(
    ways: Callable[..., list[tuple[str, Damage]]], folder: Path, examiner: Examiner
) -> None:
    data = (folder / "store" / "data" / "data.mdb").read_bytes()
    counts = sweep_data(folder, examiner, ways(data, random.Random(2), 40))
    assert set(counts) <= {"right", "refused", "found"}
    assert sum(counts.values()) - counts.get("right", 0) > 10


@pytest.mark.nightly
@pytest.mark.parametrize("ways", [flips, sectors, noise, cuts])
@pytest.mark.parametrize("seed", range(100, 104))
def test_damage_to_the_data_file_is_found_in_a_long_search(
    ways: Callable[..., list[tuple[str, Damage]]], seed: int, folder: Path, examiner: Examiner
) -> None:
    data = (folder / "store" / "data" / "data.mdb").read_bytes()
    counts = sweep_data(folder, examiner, ways(data, random.Random(seed), 600))
    assert set(counts) <= {"right", "refused", "found"}


@pytest.mark.slow
def test_strange_things_in_the_place_of_the_data_file_are_refused(
    folder: Path, examiner: Examiner
) -> None:
    ways = [(what, STRANGE[what]) for what in STRANGE if what != "its neighbour's"]
    counts = sweep_data(folder, examiner, ways)
    assert set(counts) <= {"right", "refused"}
    assert counts["refused"] >= 5
