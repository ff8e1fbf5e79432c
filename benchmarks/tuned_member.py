"""A member of a cluster with options of its own, until it is ended.

python benchmarks/tuned_member.py server run DIRECTORY segment_bytes=8388608 ...
"""

from __future__ import annotations

import sys
from typing import Any

import trio

from tidelog.engine.node.server import run_member
from tidelog.engine.store.options import Options
from tidelog.engine.system.production import production


def main() -> None:
    """Run the member."""
    _, _, _, directory, *given = sys.argv
    options: dict[str, Any] = {
        name: int(value) for name, _, value in (g.partition("=") for g in given)
    }

    async def run() -> None:
        await run_member(
            production(),
            directory,
            ready=lambda _where: None,
            stop=trio.Event(),
            options=Options(**options),
        )

    trio.run(run)


if __name__ == "__main__":
    main()
