"""``tidelog server``: makes a member of a cluster, and runs it until it is told to end.

Invariants:

- SIGTERM and Ctrl-C let the member end in order: it gives its leases back, answers what is under
  way, and takes a checkpoint; that ends with 0.  A second one ends the process at once.
- A member may have as many files open as the system lets it: each client takes one.
- Nothing is written but lines to stdout and stderr, and what the store itself writes.

Left out: what a member does (``engine.node``), and several of them at once (``tools.cluster``).
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import stat
import sys
from types import FrameType
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import click

from ...affinity.errors import TidelogError, UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...affinity.rows import REPLICAS_MAX
from ...engine.agreement.identity import member_id
from ...engine.files.manifest import read as read_manifest
from ...engine.system.environment import Address, address_text
from ...engine.system.interpreter import prepare_interpreter
from ...engine.system.layout import MANIFEST_NAME
from ...engine.system.open_files import raise_open_files
from ...engine.system.production import production
from ...wal.files import ReadOnlyDirectory
from ..shell.commands import PATH, LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import RefusedError
from ..shell.terminal import Settings, note, write_fields, write_json
from .members import (
    addresses_in,
    check_member_name,
    identified,
    named_members,
    parsed_address,
    reachable_address,
)

if TYPE_CHECKING:
    from ...engine.node.member_files import Newcomer

SCHEMA = 1
PARTITIONS = 1024
SOLO_PARTITIONS = 16
SOLO_NAME = "solo"
FIRST_NAME = "n1"
SOCKET_NAME = "socket"
SOCKET_BYTES_MAX = 107
"""What Linux takes for the path of a Unix socket."""

_NO_LISTENING = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)

_partitions = click.IntRange(1, PARTITIONS_MAX)


@click.group(cls=LazyGroup)
def server() -> None:
    """Make and run a member of a cluster."""


@server.command()
@store_argument("directory")
@click.option("--members", required=True, help="All members, as NAME=HOST:PORT,... of each.")
@click.option("--name", required=True, help="Which of them this one is.")
@click.option("--cluster", type=click.UUID, help="Id of the cluster; made if it is left out.")
@click.option(
    "--partitions", type=_partitions, default=PARTITIONS, show_default=True, help="For good."
)
@click.option(
    "--backups",
    type=click.IntRange(0, REPLICAS_MAX - 1),
    default=0,
    show_default=True,
    help="Copies of each partition beside the first one.",
)
@click.option(
    "--min-in-sync",
    type=click.IntRange(1, REPLICAS_MAX),
    default=1,
    show_default=True,
    help="Copies that have to be there for a partition to be written.",
)
@click.option(
    "--no-auto-join", is_flag=True, help="Members that join later enter when they are asked to."
)
@json_options
@click.pass_context
def init(
    ctx: click.Context,
    directory: str,
    members: str,
    name: str,
    cluster: UUID | None,
    partitions: int,
    backups: int,
    min_in_sync: int,
    no_auto_join: bool,
    form: str,
) -> None:
    """Make the member NAME of a new cluster in DIRECTORY.

    Each member is made on its own machine with the same --members, --partitions, --backups,
    --min-in-sync, --no-auto-join and --cluster.
    The first one may leave --cluster out: it prints the id for the others.
    """
    from ...engine.node.member_files import init_member

    known = named_members(members)
    if name not in known:
        raise UsageError(
            f"{name!r} is not one of the members", hint=f"--name is one of {', '.join(known)}."
        )
    cluster = cluster or uuid4()
    member = member_id(cluster, name)
    init_member(
        production(),
        os.path.abspath(directory),
        cluster=cluster,
        member=member,
        members=identified(cluster, known),
        partitions=partitions,
        backups=backups,
        min_in_sync=min_in_sync,
        auto_join=not no_auto_join,
    )
    fields = {"name": name, "cluster": str(cluster), "member": str(member), "address": known[name]}
    if form == "text":
        write_fields(settings_of(ctx), fields)
        note(settings_of(ctx), f"run it with `tidelog server run {shlex.quote(directory)}`")
    else:
        write_json({"v": SCHEMA, "type": "member", **fields})


@server.command()
@store_argument("directory")
@click.option("--listen", required=True, help="HOST:PORT at which the others will reach it.")
@click.option("--name", default=FIRST_NAME, show_default=True, help="Its name in the cluster.")
@click.option("--cluster", type=click.UUID, help="Id of the cluster; made if it is left out.")
@click.option(
    "--backups",
    type=click.IntRange(0, REPLICAS_MAX - 1),
    default=0,
    show_default=True,
    help="Copies of each partition beside the first one, once there are members for them.",
)
@json_options
@click.pass_context
def adopt(
    ctx: click.Context,
    directory: str,
    listen: str,
    name: str,
    cluster: UUID | None,
    backups: int,
    form: str,
) -> None:
    """Make the store in DIRECTORY the first member of a new cluster, for good.

    Its partitions, maps and history stay. Nobody but `tidelog server run` opens it from then on.
    """
    from ...engine.api.open import open as open_store
    from ...engine.node.adopting import adopt_store

    address = reachable_address(listen)
    cluster = cluster or uuid4()
    member = member_id(cluster, check_member_name(name))
    if (its_own := _cluster_of(directory)) is not None:
        raise RefusedError(
            f"{directory} is that of a member of cluster {its_own} already",
            hint=f"Run it: `tidelog server run {shlex.quote(directory)}`.",
        )
    open_store(directory, create=False).close()  # what a crash has left is recovered by that
    adopt_store(
        production(),
        os.path.abspath(directory),
        cluster=cluster,
        member=member,
        address=address,
        backups=backups,
    )
    fields = {"name": name, "cluster": str(cluster), "member": str(member), "address": address}
    if form == "text":
        write_fields(settings_of(ctx), fields)
        note(settings_of(ctx), f"run it with `tidelog server run {shlex.quote(directory)}`")
    else:
        write_json({"v": SCHEMA, "type": "member", **fields})


def _cluster_of(directory: str) -> UUID | None:
    """Return of which cluster a member the store in a directory is; None if that is not told."""
    try:
        found = read_manifest(ReadOnlyDirectory(directory)).cluster
    except (OSError, TidelogError):
        return None  # who opens it tells what is wrong
    return None if found is None else UUID(found)


@server.command()
@click.argument("directories", metavar="DIRECTORY...", type=PATH, nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="All other members are gone for good.")
@json_options
@click.pass_context
def rescue(ctx: click.Context, directories: tuple[str, ...], yes: bool, form: str) -> None:
    """Make a new cluster of the members in DIRECTORY..., when most of them are gone for good.

    Name all that are left, at once. It has another id and another history; what only the others had
    is lost. Given again it goes on where it was cut short.
    """
    from ...engine.node.rescuing import rescue_members

    if not yes:
        raise RefusedError(
            "the other members could never come back, and what only they have would be lost",
            hint="If a majority of the members can be started again, start them. If not, give "
            "--yes.",
        )
    topology = rescue_members(production(), list(map(os.path.abspath, directories)))
    fields = {
        "cluster": str(topology.cluster),
        "history": str(topology.history),
        "members": [str(member) for member in topology.baseline],
        "partitions_lost": list(topology.lost),
    }
    if form == "text":
        write_fields(settings_of(ctx), fields)
    else:
        write_json({"v": SCHEMA, "type": "rescued", **fields})


@server.command()
@store_argument("directory")
@click.option("--listen", help="HOST:PORT, if it is not the one of --members; of --join always.")
@click.option("--join", "seeds", help="HOST:PORT,... of members: joins their cluster, if need be.")
@click.option("--name", help="Of a member that joins; without it its id is a random one.")
@click.option("--voter", is_flag=True, help="A member that joins, votes, and holds no data.")
@click.option("--insecure", is_flag=True, help="Listen off loopback, without encryption.")
@click.option("--solo", is_flag=True, help="A cluster of one, on a socket; made if need be.")
@click.option(
    "--socket", type=PATH, help=f"Path of that socket.  [default: DIRECTORY/{SOCKET_NAME}]"
)
@click.option("--partitions", type=_partitions, help="Of a cluster of one that is made.")
@click.pass_context
def run(
    ctx: click.Context,
    directory: str,
    listen: str | None,
    seeds: str | None,
    name: str | None,
    voter: bool,
    insecure: bool,
    solo: bool,
    socket: str | None,
    partitions: int | None,
) -> None:
    """Run the member in DIRECTORY until SIGTERM or Ctrl-C.

    Prints a line once it listens. The first signal lets it end in order, the second one at once.
    With --join it becomes a member of a cluster that runs, unless it is one already.
    """
    if solo and seeds:
        raise UsageError("--solo excludes --join", hint="A cluster of one stays one.")
    if solo and (listen or insecure):
        raise UsageError("--solo excludes --listen and --insecure", hint="It has a socket.")
    if not seeds and (name is not None or voter):
        raise UsageError("--name and --voter are for --join", hint="Give --join, too.")
    if seeds and not listen:
        raise UsageError(
            "--join takes --listen: at which address the others reach this member",
            hint="Give it as --listen 127.0.0.1:7403.",
        )
    if not solo and (socket or partitions):
        raise UsageError("--socket and --partitions are for --solo", hint="Give --solo, too.")
    directory = os.path.abspath(directory)
    address = parsed_address(listen) if listen else None
    if solo:
        address = _solo(directory, socket, partitions), 0
    newcomer = _newcomer(seeds, address, name, voter) if seeds and address else None
    _run(settings_of(ctx), directory, address, insecure, solo, newcomer)


def _newcomer(seeds: str, address: Address, name: str | None, voter: bool) -> Newcomer:
    """Return who joins a cluster that runs."""
    from ...engine.node.member_files import Newcomer

    return Newcomer(
        seeds=addresses_in(seeds),
        address=reachable_address(address_text(address)),
        name=None if name is None else check_member_name(name),
        voter=voter,
    )


def _solo(directory: str, socket: str | None, partitions: int | None) -> str:
    """Make a cluster of one if there is none yet; return the path of its socket."""
    from ...engine.node.member_files import init_member

    path = os.path.abspath(socket or os.path.join(directory, SOCKET_NAME))
    if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
        raise UsageError(
            f"the path of the socket, {path}, is longer than {SOCKET_BYTES_MAX} bytes",
            hint="Give a shorter one with --socket.",
        )
    _check_socket(path, directory)
    if not os.path.exists(os.path.join(directory, MANIFEST_NAME)):
        cluster = uuid4()
        init_member(
            production(),
            directory,
            cluster=cluster,
            member=member_id(cluster, SOLO_NAME),
            members=identified(cluster, {SOLO_NAME: path}),
            partitions=partitions or SOLO_PARTITIONS,
        )
    elif partitions:
        raise UsageError(
            f"there is a store in {directory} already; its number of partitions stays",
            hint="Leave --partitions out.",
        )
    return path


def _check_socket(path: str, directory: str) -> None:
    """Raise unless a socket can be where it is wanted; ``directory`` is made if need be."""
    folder = os.path.dirname(path)
    if folder != directory and not os.path.isdir(folder):
        raise UsageError(
            f"there is no directory {folder} for the socket",
            hint="Make it, or give another path with --socket.",
        )
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise UsageError(
            f"there is something else at {path}, which is to be the socket",
            hint="Give another path with --socket.",
        )


def _run(
    settings: Settings,
    directory: str,
    listen: Address | None,
    insecure: bool,
    solo: bool,
    newcomer: Newcomer | None,
) -> None:
    import trio

    from ...engine.node.server import run_member

    def ready(where: Address) -> None:
        click.echo(f"listening at {address_text(where)}, process {os.getpid()}")
        sys.stdout.flush()

    async def serve() -> None:
        stop = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def end(number: int, _frame: FrameType | None) -> None:
            if asked:
                os._exit(128 + number)
            asked.append(number)
            token.run_sync_soon(stop.set)

        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        await run_member(
            production(),
            directory,
            listen=listen,
            insecure=insecure,
            alone=solo,
            ready=ready,
            stop=stop,
            newcomer=newcomer,
        )

    failed: BaseException | None = None
    try:
        prepare_interpreter()
        raise_open_files()
        trio.run(serve)
    except BaseExceptionGroup as group:
        failed = _told(group, "path with --socket" if solo else "address with --listen")
    if failed:
        raise failed
    note(settings, "the member has ended in order")


def _told(group: BaseExceptionGroup[BaseException], other: str) -> BaseException:
    """Return the error to tell of those that ended the tasks of a member.

    ``other`` is what to give if it cannot listen where it should.
    """
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, OSError) and first.errno in _NO_LISTENING:
        return UsageError(
            f"the member cannot listen at {first.filename or 'its address'}: {first.strerror}",
            hint=f"End whoever listens there, or give another {other}.",
        )
    return first
