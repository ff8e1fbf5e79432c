"""The entry point of the command ``tidelog``: signals first, then the rest is imported."""

from __future__ import annotations

from .shell.signals import end_at_once


def main() -> None:
    """Run the command line of this process."""
    end_at_once()
    from .main import main as run

    run()
