from __future__ import annotations

import pytest

from tidelog.checkpoints.policy import CheckpointPolicy

POLICY = CheckpointPolicy(overlay_bytes=100, interval_seconds=60.0)


@pytest.mark.parametrize(
    ("overlay", "log", "seconds", "reason"),
    [
        (0, 0, 0.0, None),
        (99, 399, 59.9, None),
        (100, 0, 0.0, "overlay"),
        (1, 400, 0.0, "log"),
        (0, 400, 0.0, "log"),
        (1, 1, 60.0, "idle"),
        # A store that nobody writes to has nothing to carry over, however long it rests.
        (0, 399, 1e9, None),
        (100, 400, 60.0, "overlay"),
    ],
)
def test_a_checkpoint_is_due(overlay: int, log: int, seconds: float, reason: str | None) -> None:
    assert POLICY.due(overlay_bytes=overlay, log_bytes=log, seconds=seconds) == reason


def test_who_fills_the_overlay_waits_at_twice_its_size() -> None:
    assert POLICY.wait_bytes == 200
