"""The interpreter of a process that does nothing but run a member.

An event loop beside threads that compute waits for the interpreter behind each thing that it asks
of the system: for ``sys.getswitchinterval()`` seconds each time, 5 ms unless told.  A put asks for
a handful of such things on each member.

Left out: processes of others.  Who opens a store as a library has an interpreter that is theirs.
"""

from __future__ import annotations

import gc
import sys

SWITCH_S = 0.0002
"""Seconds after which a thread lets another one have the interpreter, if it is asked."""
MIDDLE, OLD = 20, 100
"""Collections of younger garbage behind which one of older garbage follows."""


def prepare_interpreter() -> None:
    """Let threads take turns often, and look seldom for old garbage in circles.

    A member makes hardly any, and what it has loaded and holds for long would be gone over each
    time.  What has died young is looked for as ever.
    """
    sys.setswitchinterval(SWITCH_S)
    young, *_ = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(young, MIDDLE, OLD)
