"""What an open refuses before it touches a store: options, and places that cannot hold one."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from tidelog.affinity.errors import CodecError, NotFoundError, UsageError
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open as open_store
from tidelog.engine.codecs.registry import Str
from tidelog.engine.commit.lock_manager import SECONDS_MAX
from tidelog.engine.store.options import TRANSACTION_BYTES_LIMIT, Options
from tidelog.wal.format import PAYLOAD_MAX


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", -1),
        ("segment_bytes", 1.5),
        ("segment_bytes", True),
        ("segment_bytes", "64M"),
        ("segment_bytes", None),
        ("sync_interval", math.nan),
        ("sync_interval", math.inf),
        ("retain_seconds", -1.0),
        ("lock_timeout", 0),
        ("growth_patience", 0),
    ],
)
def test_an_option_that_is_no_positive_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name}\b"):
        Options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("lock_timeout", 1e10, "9,223,372,036 seconds"),
        ("sync_interval", 1e10, "9,223,372,036 seconds"),
        ("checkpoint_interval", 1e300, "9,223,372,036 seconds"),
        ("retain_seconds", math.inf, "9,223,372,036 seconds"),
        ("map_size", 10**400, "9,223,372,036,854,775,807 bytes"),
    ],
)
def test_an_option_beyond_what_can_be_had_is_refused_at_once(
    name: str, value: Any, limit: str
) -> None:
    # The background thread died of an OverflowError, or whoever met a lock got one.
    with pytest.raises(UsageError, match=f"^{name} is more than {limit}$"):
        Options(**{name: value})


def test_the_longest_time_can_be_waited_for(tmp_path: Path) -> None:
    with open_store(
        tmp_path / "store",
        lock_timeout=SECONDS_MAX,
        sync_interval=SECONDS_MAX,
        checkpoint_interval=SECONDS_MAX,
        durability="interval",
    ) as db:
        shop = db.map("shop")
        with db.transaction(
            "pessimistic", lock_timeout=SECONDS_MAX, deadline=SECONDS_MAX, plain_writes=True
        ) as tx:
            tx[shop][b"a"] = b"1"  # locked from here on
            other = threading.Thread(target=shop.update, args=({b"a": b"2"},))
            other.start()
            while not session_of(db).locks._waiting:
                pass
        other.join()
        assert shop[b"a"] == b"2"


def test_what_nobody_asked_for_is_as_it_always_was() -> None:
    # Who tunes another one relies on these; documented in docs/operations.md.
    assert Options() == Options(
        segment_bytes=64 << 20,
        checkpoint_bytes=192 << 20,
        retain_bytes=256 << 20,
        retain_seconds=None,
        transaction_bytes_max=64 << 20,
        snapshot_memory_max=1 << 30,
        map_size=1 << 40,
        map_size_max=16 << 40,
        sync_interval=0.05,
        checkpoint_interval=60.0,
        lock_timeout=10.0,
        growth_patience=5.0,
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [("partitons", "partitions"), ("durabilty", "durability"), ("segment_byte", "segment_bytes")],
)
def test_a_misspelt_option_names_the_nearest_one(tmp_path: Path, given: str, meant: str) -> None:
    # Only the limits were looked at, so `partitons` got no answer.
    options: dict[str, Any] = {given: 4}
    with pytest.raises(UsageError, match=given) as caught:
        open_store(tmp_path / "shop.tl", **options)
    assert caught.value.hint == f"Did you mean {meant!r}?"


def test_options_take_whole_seconds_and_no_limit_of_age() -> None:
    options = Options(sync_interval=1, retain_seconds=None)
    assert (options.sync_interval, options.retain_seconds) == (1, None)


@pytest.mark.parametrize(
    ("path", "options", "says", "hint"),
    [
        ("x.tl", {"codecs": Str}, "not a list of codecs", "codecs=[...]"),
        ("x.tl", {"codecs": None}, "not a list of codecs", "codecs=[...]"),
        ("x.tl", {"codecs": [1]}, "int is not a codec", "name, version"),
        ("x.tl", {"codecs": "str"}, "str is not a codec", "name, version"),
        (b"x.tl", {}, "not bytes", "os.fsdecode"),
        (5, {}, "not int", "os.fsdecode"),
        ("a\0b", {}, r"'a\\x00b', has a null character", "without one"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_codecs_and_paths_that_are_none_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: Any,
    options: dict[str, Any],
    says: str,
    hint: str,
    read_only: bool,
) -> None:
    # They were a bare TypeError, or taken until a map named a codec.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says) as caught:
        open_store(path, read_only=read_only, **options)
    assert hint in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_no_transaction_can_be_larger_than_a_frame() -> None:
    # With a larger limit a commit was acknowledged in a frame that no reader accepts.
    assert 2 * TRANSACTION_BYTES_LIMIT <= PAYLOAD_MAX
    assert Options(transaction_bytes_max=TRANSACTION_BYTES_LIMIT)
    with pytest.raises(UsageError, match="may ever have"):
        Options(transaction_bytes_max=TRANSACTION_BYTES_LIMIT + 1)


def test_a_store_is_not_made_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    # It was a FileNotFoundError of the operating system, without a code or a hint.
    with pytest.raises(NotFoundError, match=r"no directory .* to make a store in"):
        open_store(tmp_path / "absent" / "shop.tl")
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_partitions_is_no_option_of_reading(tmp_path: Path) -> None:
    open_store(tmp_path / "store", partitions=2).close()
    with pytest.raises(UsageError, match="made with"):
        open_store(tmp_path / "store", read_only=True, partitions=3)  # type: ignore[call-overload]
    with open_store(tmp_path / "store", read_only=True) as reader:
        assert reader.partitions == 2


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("wrong", [str, 0, "str"])
def test_a_map_takes_codecs_only(tmp_path: Path, part: str, wrong: Any, read_only: bool) -> None:
    # A map that was there gave an AttributeError, and a new one took 0 for no codec.
    with open_store(tmp_path / "store") as db:
        db.map("there")
        with pytest.raises(CodecError, match="is not a codec"):
            db.map("new", **{part: wrong})
        assert db.maps() == ["there"]
    with (
        open_store(tmp_path / "store", read_only=read_only) as store,
        pytest.raises(CodecError, match="is not a codec"),
    ):
        store.map("there", **{part: wrong})
