"""Looks at a damaged store: is everything right, or does it say what is wrong?

Damage of the data file may end a process by a signal, so ``python -m support.damage_worker`` does
this elsewhere: a path per line on its input, a verdict per line on its output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.real_stores import quiet
from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open_with
from tidelog.errors import TidelogError

RIGHT = "right"
EXPECTED = "expected.json"
"""Beside a store: its maps as lists of hex pairs, and the ids of its transactions."""


def keep_expected(db: Database, beside: Path, ids: list[bytes]) -> None:
    """Write down what a store holds."""
    maps = {
        name: [[key.hex(), value.hex()] for key, value in db.map(name).items()]
        for name in db.maps()
    }
    text = json.dumps({"maps": maps, "ids": [tx_id.hex() for tx_id in ids]})
    (beside / EXPECTED).write_text(text)


def examine(path: Path, expected: Path) -> str:
    """Return RIGHT, or which errors of Tidelog there were; raises for anything else."""
    content = json.loads(expected.read_text())
    errors: set[str] = set()

    def attempt(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TidelogError as error:
            errors.add(f"{type(error).__name__}: {error}")
            return None

    db = attempt(lambda: open_with(quiet(), path, create=False))
    if db is None:
        return f"refused: {errors.pop()}"
    try:
        assert db.maps() == sorted(content["maps"]), "a map is missing"
        for name, pairs in content["maps"].items():
            wanted = [(bytes.fromhex(k), bytes.fromhex(v)) for k, v in pairs]
            expect_pairs(db, name, wanted, attempt)
        for tx_id in content["ids"]:
            found = attempt(partial(db.outcome, bytes.fromhex(tx_id)))
            assert found in (None, "committed", "too_old"), f"{tx_id} is {found}"
        attempt(lambda: db.map("new").update_many({b"%d" % n: b"new" for n in range(100)}))
    finally:
        attempt(db.close)
    return f"found: {min(errors)}" if errors else RIGHT


def expect_pairs(
    db: Database, name: str, pairs: list[tuple[bytes, bytes]], attempt: Callable[..., Any]
) -> None:
    mapping = db.map(name)
    for key, value in pairs:
        found = attempt(lambda key=key: (mapping.get(key),))
        assert found in (None, (value,)), f"{name}[{key!r}] is {found}"
        absent = attempt(lambda key=key: (mapping.get(key + b"\0"),))
        assert absent in (None, (None,)), f"{name} has a key that nobody wrote: {absent}"
    for reverse in (False, True):
        found = attempt(lambda reverse=reverse: list(mapping.range(reverse=reverse)))
        assert found in (None, pairs[:: -1 if reverse else 1]), f"{name} has other pairs"
    low, high = pairs[len(pairs) // 3][0], pairs[2 * len(pairs) // 3][0]
    inside = [pair for pair in pairs if low <= pair[0] < high]
    found = attempt(lambda: list(mapping.range(low, high)))
    assert found in (None, inside), f"{name} has other pairs in a range"
    assert attempt(lambda: mapping.get_many([key for key, _ in pairs])) in (None, dict(pairs))


def main() -> None:
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        try:
            verdict = examine(path, path.parent / EXPECTED)
        except BaseException as error:
            verdict = f"FAILED {error!r}"
        print(verdict.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
