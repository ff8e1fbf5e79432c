"""A member's process, before its member runs."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import trio

from tidelog.affinity.errors import UsageError
from tidelog.engine.agreement.identity import member_id
from tidelog.engine.node.member_files import Newcomer, init_member
from tidelog.engine.node.server import run_member
from tidelog.engine.system.production import production

CLUSTER = UUID(int=77, version=4)
ADDRESS = "127.0.0.1:1"
N1 = member_id(CLUSTER, "n1")


def test_a_directory_whose_member_is_refused_is_let_go(tmp_path: Path) -> None:
    # Its lock stayed taken, and its files open, until the process ended.
    directory = str(tmp_path / "n1")
    init_member(
        production(), directory, cluster=CLUSTER, member=N1, members=[(N1, ADDRESS)], partitions=1
    )

    async def run() -> None:
        await run_member(
            production(),
            directory,
            newcomer=Newcomer(seeds=(ADDRESS,), address=ADDRESS, name="n2"),
            ready=lambda _: None,
            stop=trio.Event(),
        )

    for _ in range(2):
        with pytest.raises(UsageError, match="that of another member than n2"):
            trio.run(run)
