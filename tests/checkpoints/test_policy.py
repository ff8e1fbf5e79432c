from __future__ import annotations

import pytest

from tidelog.checkpoints.policy import CheckpointPolicy

POLICY = CheckpointPolicy(overlay_bytes=100, log_bytes=400, idle_seconds=60.0)


@pytest.mark.parametrize(
    ("overlay", "log", "idle", "reason"),
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
def test_a_checkpoint_is_due(overlay: int, log: int, idle: float, reason: str | None) -> None:
    assert POLICY.due(overlay_bytes=overlay, log_bytes=log, idle_seconds=idle) == reason
