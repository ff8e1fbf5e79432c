"""How many files a process may have open: sockets, segments of the log, and the data file.

The system has two limits for each process: one that holds, and a higher one, often a thousand times
as high, up to which a process may raise it.

Left out: processes of others.  Who opens a store as a library has limits that are theirs.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from .environment import many_files


def open_files_max() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return many_files() if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Let this process have as many files open as it may let itself have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may have lowered what it takes meanwhile
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
