"""Settings shared by all tests: how far Hypothesis searches."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: a timed assert fails on a busy machine.  The same cases on each run but the nightly.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
