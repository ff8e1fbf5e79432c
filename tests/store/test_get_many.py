"""Several keys read by one call, while others commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog import codecs
from tidelog.engine.data import point_reads as reads


def test_the_keys_of_one_get_many_are_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tidelog.open(tmp_path / "s.tl", partitions=4) as db:
        mapping = db.map("m", key=codecs.Str, value=codecs.I64)
        mapping.update_many({"a": 1, "b": 1})
        inner = reads._get_all

        def with_a_commit_between(
            source: Any, namespace: Any, keys: list[bytes], wait_applied: Any
        ) -> Any:
            monkeypatch.setattr(reads, "_get_all", inner)
            first = inner(source, namespace, keys[:1], wait_applied)
            mapping.update_many({"a": 2, "b": 2})
            return first + inner(source, namespace, keys[1:], wait_applied)

        monkeypatch.setattr(reads, "_get_all", with_a_commit_between)
        assert mapping.get_many(["a", "b"]) == {"a": 2, "b": 2}
