"""A simulated cluster as ``tidelog cluster`` sees it: what its members say, over no connection."""

from __future__ import annotations

from typing import Any

import msgpack

from tidelog.engine.node.views import told_view
from tidelog.testing import SimCluster
from tidelog.tools.cluster.cluster_file import LocalCluster, LocalMember
from tidelog.tools.cluster.showing import EXCHANGES
from tidelog.tools.cluster.standing import MemberAnswer, Picture, held_of, picture_of, status_of


def picture_in(at: SimCluster, partition: int = 0) -> Picture:
    """What all members say, of one partition too; who does not run is down."""
    answers = {name: _answer_of(at, name, partition) for name in at.names}
    return picture_of(local_cluster(at), answers)


def local_cluster(at: SimCluster) -> LocalCluster:
    """The same members, as the file of a cluster on one machine has them."""
    return LocalCluster(
        cluster=at.member_id("cluster"),
        partitions=at.partitions,
        backups=at.backups,
        members=tuple(
            LocalMember(
                name=name,
                id=at.member_id(name),
                address=f"127.0.0.1:{7400 + n}",
                directory=name,
                joined=at.member_id(name) not in at.founders,
            )
            for n, name in enumerate(at.names)
        ),
    )


def _heard(value: object) -> Any:
    """What arrives at the other end of a connection."""
    return msgpack.unpackb(msgpack.packb(value))


def _answer_of(at: SimCluster, name: str, partition: int) -> MemberAnswer:
    member = at.running().get(name)
    if member is None:
        return MemberAnswer(pid=0)
    view = _heard(told_view(member.agreement.topology))
    held = held_of([_heard(member.copies(0, 2)), _heard(member.copies(2, 100))])
    return MemberAnswer(
        pid=4711,
        status=status_of(view, _heard(member.status())),
        held=held,
        story=_heard(member.story(partition)) if member.decided else None,
        exchanges=_heard(member.exchanges(EXCHANGES)),
    )
