"""Views of stores with long mixed histories against a model in plain dicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.mixed_histories import MixedHistory


def check(folder: Path, seed: int, steps: int) -> None:
    history = MixedHistory(folder, seed)
    try:
        history.run(steps)
    finally:
        history.db.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_every_view_of_a_mixed_history_is_that_of_the_model(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_500))
def test_every_view_of_many_mixed_histories_is_that_of_the_model(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, 80)
