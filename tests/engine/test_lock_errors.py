"""What an error about a lock tells its reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.affinity.errors import LockTimeoutError
from tidelog.codecs import I64, Str
from tidelog.engine.api.open import open as open_store


def test_a_timeout_names_the_key_and_the_map_it_waited_for(tmp_path: Path) -> None:
    # It showed the lock as the table has it: KeyLock(key=b'\x00\x00\x00\x0e...', exclusive=True).
    with open_store(tmp_path / "shop.tl", lock_timeout=0.001) as db:
        stock = db.map("stock", key=Str, value=I64)
        with db.transaction("pessimistic") as holder:
            holder[stock]["apples"] = 3
            with pytest.raises(LockTimeoutError, match=r"key 'apples' of 'stock' was not granted"):
                stock["apples"] = 4 if db.transaction("pessimistic")[stock]["apples"] else 5
            with pytest.raises(LockTimeoutError, match=r"a range of 'stock' was not granted"):
                list(db.transaction("pessimistic")[stock].items())
