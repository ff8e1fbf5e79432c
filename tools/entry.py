"""The entry point of the command ``tidelog``: signals first, then the rest is imported."""

from __future__ import annotations

import sys

from .shell.signals import end_at_once


def main() -> None:
    """Run the command line of this process."""
    end_at_once()
    try:
        from .main import main as run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit(_without_click())
    run()


def _without_click() -> int:
    """Say what to install, and return the exit code; all that prints errors needs it itself."""
    sys.stderr.write(
        "error: the command tidelog needs the package click, which is not installed\n"
        "  next:  pip install 'tidelog[cli]'\n"
    )
    return 2
