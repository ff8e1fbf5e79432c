"""The store under Trio: the public name of ``tidelog.engine.aio``."""

from __future__ import annotations

from .engine.aio import *  # noqa: F403
