"""A member as a program: one incarnation after the other, until it is told to stop.

An incarnation that the others have declared gone never comes back (W1): the member lets go of its
files, and starts again under a new boot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import trio

from ...affinity.errors import ClusterError, TidelogError, UsageError
from ..agreement.identity import member_id
from ..agreement.timing import Timing
from ..net.addresses import address_of, check_address
from ..net.transport import UnwelcomeError
from ..store.options import Options
from ..system.disk_errors import translated_disk
from ..system.environment import Address, Environment
from .joining import fetch_topology
from .member import RunningMember
from .member_files import Newcomer, OpenMember, cluster_at, join_member, open_member

log = logging.getLogger("tidelog.node")

DEFAULT_TIMING = Timing()
DEFAULT_OPTIONS = Options()
BEGUN_VERSION = 4
"""The version of the id of a cluster that was never rescued, unless its user has made one up."""
CHECK_S_MAX = 1.0
"""Seconds in which seeds may tell a member that has joined before of which cluster they are, and
whoever is at its address who that is."""


async def run_member(
    environment: Environment,
    directory: str,
    *,
    listen: Address | None = None,
    insecure: bool = False,
    alone: bool = False,
    ready: Callable[[Address], object],
    stop: trio.Event,
    timing: Timing = DEFAULT_TIMING,
    options: Options = DEFAULT_OPTIONS,
    started: Callable[[RunningMember], object] | None = None,
    newcomer: Newcomer | None = None,
) -> None:
    """Run the member whose directory this is until ``stop`` is set; then it drains and ends.

    ``listen`` is where it accepts connections, if not at the address by which the others know it;
    a path and port 0 is a Unix socket.  A ``newcomer`` joins a cluster that runs, with a directory
    that is made if there is none.  ``ready`` hears where it listens, ``started`` of each
    incarnation.  Raises ``UsageError`` for an address off loopback without ``insecure``, for a
    cluster of several if the member is to be ``alone``, for the copy of a directory whose member
    runs, and for a newcomer that is a member of another cluster, or is to have another name than
    its directory; what ``open_member`` raises; ``OSError`` if it cannot listen there;
    ``ClusterError`` if the cluster will not have this disk, or nobody tells a newcomer of it.
    """
    if newcomer is not None:
        await _join(environment, directory, newcomer)
    while not stop.is_set():
        opened = await environment.run("open", lambda: open_member(environment, directory, options))
        try:
            address, votes_only = _known_as(opened, newcomer)
        except TidelogError:
            opened.close()
            raise
        member = RunningMember(opened, address=address, timing=timing, votes_only=votes_only)
        try:
            if alone:
                _check_alone(directory, opened)
            where = listen or address_of(address)
            if not where[0].startswith("/"):
                check_address(where[0], insecure=insecure)
            if where != address_of(address):
                await _check_only_one(member, opened, address)
            if started is not None:
                started(member)
            await _run_until(member, where, ready, stop)
        except BaseExceptionGroup as group:
            error = _alone(group)
            if isinstance(error, OSError):  # somebody listens there: a copy of this directory?
                await _check_only_one(member, opened, address)
            if not isinstance(error, TidelogError):
                raise
            raise error from error.__cause__
        finally:
            await member.close()


def _alone(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return the error for which all tasks of an incarnation ended; None if there are several."""
    left: BaseException | None = group
    while isinstance(left, BaseExceptionGroup):
        left = left.exceptions[0] if len(left.exceptions) == 1 else None
    return left


def _check_alone(directory: str, opened: OpenMember) -> None:
    members = len(opened.known.topology.members)
    if members > 1:
        raise UsageError(
            f"{directory} is that of a member of a cluster of {members}",
            hint="Run it with `tidelog server run` and without --solo: the others have to reach it "
            "at its address.",
        )


async def _check_only_one(member: RunningMember, opened: OpenMember, address: str) -> None:
    """Raise ``UsageError`` if the member answers at its address: this is a copy of its directory.

    The lock of a directory tells nothing of copies, and the others would take this one for the
    member that was started again: then neither serves.
    """
    with trio.move_on_after(CHECK_S_MAX), suppress(OSError, UnwelcomeError):
        other = await member.transport.ask(address_of(address))
        if other.member == opened.disk.member.bytes:
            raise UsageError(
                f"this member runs already, at {address}: {opened.files.path} is a copy of its "
                "directory",
                hint="Remove the copy. If it is to take its place, end the other one first.",
            )


async def _join(environment: Environment, directory: str, newcomer: Newcomer) -> None:
    """Make the directory of a new member of a cluster that runs, unless it is that already."""
    with translated_disk(f"looking into {directory}"):
        is_of = cluster_at(environment, directory)
    if is_of is not None:
        await _check_cluster(environment, directory, newcomer, is_of)
        return
    topology = await fetch_topology(environment, newcomer.seeds)
    cluster = topology.cluster
    assert cluster is not None
    if newcomer.name is None:
        member = UUID(bytes=environment.new_id(), version=4)
    else:
        member = member_id(cluster, newcomer.name)
    if member in topology.members:
        raise UsageError(
            f"{newcomer.name} is a member of that cluster already, in another directory",
            hint="Give another --name. Whose disk is lost does not come back under its old one.",
        )

    def made() -> None:
        join_member(environment, directory, member=member, topology=topology)

    await environment.run("open", made)


async def _check_cluster(
    environment: Environment, directory: str, newcomer: Newcomer, is_of: UUID
) -> None:
    """Raise ``UsageError`` if another cluster answers at the seeds; it need not answer."""
    with trio.move_on_after(CHECK_S_MAX), suppress(ClusterError):
        cluster = (await fetch_topology(environment, newcomer.seeds)).cluster
        if cluster != is_of:
            raise UsageError(
                f"{directory} is that of a member of cluster {is_of}, and cluster {cluster} "
                f"answers at {', '.join(newcomer.seeds)}",
                hint="Name another directory, or the addresses of its own cluster.",
            )


def _known_as(opened: OpenMember, newcomer: Newcomer | None) -> tuple[str, bool]:
    """Return the address of a member, and whether it holds no data.

    ``UsageError`` if it is to come under another name than it has.
    """
    topology, member = opened.known.topology, opened.disk.member
    known = topology.members.get(member)
    if newcomer is not None and newcomer.name is not None and topology.cluster is not None:
        named = member_id(topology.cluster, newcomer.name)
        # Of a cluster that was rescued no member has the id that its name would give it now.
        as_it_began = topology.cluster.version == BEGUN_VERSION
        if named != member and (known is None or as_it_began or named in topology.members):
            raise UsageError(
                f"{opened.files.path} is that of another member than {newcomer.name}",
                hint="Give the --name that it was made with, or name another directory."
                + " This one has not joined yet, and may be removed." * (known is None),
            )
    if known is not None:
        return known.address, known.voter
    if newcomer is None:
        raise ClusterError(
            f"the member at {opened.files.path} has not joined its cluster yet, and does not know "
            "at which address others shall reach it",
            hint="Run it with --join and --listen once more.",
        )
    return newcomer.address, newcomer.voter


async def _run_until(
    member: RunningMember, listen: Address, ready: Callable[[Address], object], stop: trio.Event
) -> None:
    async def leave() -> None:
        await stop.wait()
        await member.leave()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await member.run(listen=listen, ready=ready)
        nursery.cancel_scope.cancel()
