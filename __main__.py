"""``python -m tidelog``: the same as the command ``tidelog``."""

from __future__ import annotations

from .tools.entry import main

if __name__ == "__main__":
    main()
