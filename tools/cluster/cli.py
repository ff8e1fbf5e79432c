"""``tidelog cluster``: a cluster of real processes on this machine, in one command.

Invariants:

- Each command can be given again: what is so already is told, and the command ends with 0.
- ``down`` and ``kill`` leave all data; nothing here removes any.
- Who interrupts one that waits is told what goes on by itself.

Left out: members on other machines (``tidelog server``).
"""

from __future__ import annotations

import shlex
from functools import partial

import click

from ...affinity.errors import (
    NotEnoughMembersError,
    NotFoundError,
    PartitionUnavailableError,
    UsageError,
)
from ...affinity.partitions import PARTITIONS_MAX
from ...affinity.rows import REPLICAS_MAX
from ...affinity.topology import LOSS_POLICIES, LossPolicy
from ..shell.commands import PATH, LazyGroup, settings_of, store_argument
from ..shell.exits import RefusedError
from ..shell.terminal import note, telling_if_interrupted
from . import showing
from .baseline import (
    Seat,
    seats_of,
)
from .blocks import blocks_about, partitions_text
from .cluster_file import check_is_here, read_cluster, start_text
from .elsewhere import found_cluster
from .growing import check_may_come, newcomer_of, note_out, wait_until, want
from .losing import (
    best_copy,
    check_nobody_is_away,
    check_not_running,
    check_reset,
    choose_policy,
    declare_lost,
    note_lost,
    reset_partition,
    told_losses,
)
from .rescuing import members_left, rescue_cluster
from .running import (
    changing,
    check_base_port,
    check_copies,
    check_made,
    check_ports,
    described,
    end_members,
    kill_member,
    look,
    made_members,
    make_members,
    move_partition,
    prepare_folder,
    start_members,
    wait_for_copies,
)
from .shares import shares_of

MEMBERS, MEMBERS_MAX = 3, 32
PARTITIONS = 64
BASE_PORT = 7400

_ENDED_AGAIN = (
    "interrupted: the members that it has started have ended again; what was made stays, and the "
    "same command goes on with it"
)
_CATCHES_UP = "interrupted: the members run, and their copies catch up by themselves"
_ENDING = (
    "interrupted: the members go on ending by themselves; the same command waits until they have"
)


@click.group(cls=LazyGroup)
def cluster() -> None:
    """Run a cluster on this machine, to try things with."""


for _command in (
    showing.status, showing.nodes, showing.partitions, showing.partition, showing.explain,
    showing.exchanges, showing.losses, showing.gaps,
):  # fmt: skip
    cluster.add_command(_command)


@cluster.command()
@click.option(
    "-n", "members", type=click.IntRange(1, MEMBERS_MAX), help=f"Members.  [default: {MEMBERS}]"
)
@click.option("--dir", "folder", required=True, type=PATH, help="Directory of the cluster.")
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    help=f"Partitions, for good.  [default: {PARTITIONS}]",
)
@click.option(
    "--backups",
    type=click.IntRange(0, REPLICAS_MAX - 1),
    help="Copies of each partition beside the first one.  [default: 0]",
)
@click.option(
    "--min-in-sync",
    type=click.IntRange(1, REPLICAS_MAX),
    help="Copies that have to be there for a partition to be written.  [default: 1]",
)
@click.option(
    "--no-auto-join", is_flag=True, help="Members that join later enter when they are asked to."
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65_535),
    help=f"The first port to try.  [default: {BASE_PORT}]",
)
@click.pass_context
def up(
    ctx: click.Context,
    members: int | None,
    folder: str,
    partitions: int | None,
    backups: int | None,
    min_in_sync: int | None,
    no_auto_join: bool,
    base_port: int | None,
) -> None:
    """Make a cluster in a directory, or start again what is there; return when all is served.

    Each member is a process of its own on 127.0.0.1, whose store and log are in its directory.
    """
    settings = settings_of(ctx)
    settings.where = folder
    check_is_here(folder)
    check_copies(folder, members or MEMBERS, backups or 0, min_in_sync or 1)
    check_ports(folder, members or MEMBERS, base_port or BASE_PORT)
    prepare_folder(folder)
    with changing(folder):
        found = described(
            folder,
            members or MEMBERS,
            partitions or PARTITIONS,
            base_port or BASE_PORT,
            backups or 0,
            min_in_sync or 1,
            auto_join=not no_auto_join,
        )
        _check_same("members", members, len(found.founders))
        _check_same("partitions", partitions, found.partitions)
        _check_same("backups", backups, found.backups)
        _check_same("copies that have to be there", min_in_sync, found.min_in_sync)
        check_base_port(found, base_port)
        if no_auto_join and found.auto_join:
            raise UsageError(
                "members enter the cluster that is there by themselves, and that stays so",
                hint="Leave the option out, or name another directory.",
            )
        names = made_members(folder, found, partial(note, settings))
        with telling_if_interrupted(lambda: [_ENDED_AGAIN]):
            make_members(folder, found, names)
            served = start_members(folder, names, partial(note, settings))
    if served:
        with telling_if_interrupted(lambda: [_CATCHES_UP]):
            wait_for_copies(folder, partial(note, settings))
    addresses = ",".join(member.address for member in found.left if member.name in names)
    click.echo(f"up: tidelog://{addresses}")
    note(settings, f"connect to it with tidelog.connect({folder!r})")


def _check_same(what: str, wanted: int | None, there: int) -> None:
    if wanted not in (None, there):
        raise UsageError(
            f"the cluster that is there has {there} {what}, not {wanted}",
            hint="Leave the option out, or name another directory.",
        )


@cluster.command()
@store_argument("directory")
@click.argument("number", metavar="PARTITION", type=int)
@click.argument("node")
@click.pass_context
def move(ctx: click.Context, directory: str, number: int, node: str) -> None:
    """Let NODE serve PARTITION, of which it has a copy; return when it does."""
    found = found_cluster(directory)
    found.member(node)
    picture, share, blocks = showing.look_at(directory, found, number)
    if not picture.majority:
        raise NotEnoughMembersError(
            f"partition {number} stays where it is: {blocks[0].text}", hint=f"{blocks[0].next}."
        )
    if node == share.primary:
        mine = blocks_about(share, blocks)
        if share.state != "served":
            raise PartitionUnavailableError(
                f"{node} is the primary of partition {number} already, and does not serve it now: "
                f"the partition is {share.state}",
                partition=number,
                hint=f"{mine[0].next}." if mine else "Wait a moment, and ask again.",
            )
        return note(settings_of(ctx), f"{node} serves partition {number} already")
    if node not in share.in_sync:
        raise UsageError(
            f"{node} has no copy of partition {number} that counts: {', '.join(share.in_sync)} "
            f"{'have one' if len(share.in_sync) > 1 else 'has the only one'}",
            hint="Name one of these.",
        )
    move_partition(found, number, share.primary, node)
    note(settings_of(ctx), f"{node} serves partition {number}, which {share.primary} did")


@cluster.command()
@store_argument("directory")
@click.argument("node")
@click.pass_context
def kill(ctx: click.Context, directory: str, node: str) -> None:
    """End the process of NODE as by `kill -9`; its data stays."""
    read_cluster(directory).member(node)
    with changing(directory):
        kill_member(directory, node, partial(note, settings_of(ctx)))


@cluster.command()
@store_argument("directory")
@click.argument("node")
@click.pass_context
def start(ctx: click.Context, directory: str, node: str) -> None:
    """Start NODE again; return when it serves, or answers if there is no majority."""
    found, tell = read_cluster(directory), partial(note, settings_of(ctx))
    found.member(node)
    with changing(directory):
        check_may_come(directory, look(directory, found), found.member(node))
        with telling_if_interrupted(lambda: [_ENDED_AGAIN]):
            check_made(directory, found, node)
            served = start_members(directory, [node], tell)
    if served:
        with telling_if_interrupted(lambda: [_CATCHES_UP]):
            wait_for_copies(directory, tell)


@cluster.command()
@store_argument("directory")
@click.argument("node")
@click.pass_context
def stop(ctx: click.Context, directory: str, node: str) -> None:
    """End NODE in order: others serve what it does before; `kill -9` if it does not."""
    read_cluster(directory)
    with changing(directory), telling_if_interrupted(lambda: [_ENDING]):
        end_members(directory, partial(note, settings_of(ctx)), node)


@cluster.command()
@store_argument("directory")
@click.pass_context
def down(ctx: click.Context, directory: str) -> None:
    """End all members in order, with `kill -9` for whoever does not; all data stays."""
    read_cluster(directory)
    with changing(directory), telling_if_interrupted(lambda: [_ENDING]):
        end_members(directory, partial(note, settings_of(ctx)))


# ------------------------------------------------------------------ growing and shrinking


@cluster.command()
@store_argument("directory")
@click.argument("name", required=False)
@click.option("--voter", is_flag=True, help="It votes, and holds no data.")
@click.option("--base-port", type=click.IntRange(1, 65_535), help="The first port to try.")
@click.pass_context
def join(
    ctx: click.Context, directory: str, name: str | None, voter: bool, base_port: int | None
) -> None:
    """Let one more member, NAME, join the cluster; return when it has its part of the data.

    Given again it goes on with a member that has not come to an end of it.
    """
    tell = partial(note, settings_of(ctx))
    read_cluster(directory)
    with changing(directory):
        found = read_cluster(directory)
        member = newcomer_of(directory, found, name, voter=voter, base_port=base_port)
        with telling_if_interrupted(lambda: [_ENDED_AGAIN]):
            start_members(directory, [member.name], tell)
    place = shlex.quote(directory)
    goes_on = (
        f"interrupted: {member.name} goes on joining by itself; "
        f"`tidelog cluster join {place} {member.name}` waits for it"
    )
    with telling_if_interrupted(lambda: [goes_on]):
        seat = wait_until(directory, member.name, _has_come, tell)
    if seat.votes:
        tell(f"{seat.member} votes, and holds {_held(seat)}")
    else:
        tell(
            f"{seat.member} has joined, and does not vote: "
            f"`tidelog cluster baseline add {place} {seat.member}` lets it enter"
        )


@cluster.command()
@store_argument("directory")
@click.argument("node")
@click.option("--yes", is_flag=True, help="It is so, and NODE may never come back.")
@click.pass_context
def lose(ctx: click.Context, directory: str, node: str, yes: bool) -> None:
    """Declare the disk of NODE lost: it never comes back, and others go on without it.

    What only NODE had is lost then. A disk that turns up all the same is refused, and not touched.
    """
    found = found_cluster(directory)
    if look(directory, found).is_lost(found.member(node)):
        with changing(directory):
            note_lost(directory, found_cluster(directory), node)
        note(settings_of(ctx), f"{node} was declared lost already: it never comes back")
        return
    check_not_running(directory, found, node)
    if not yes:
        raise RefusedError(
            f"if {node} is declared lost it never comes back, and what only it has is gone",
            hint=f"If its disk may be read again, start it: {start_text(directory, node)}. If not, "
            "give --yes.",
        )
    with changing(directory):
        declare_lost(directory, found_cluster(directory), node)
    lost = told_losses(directory, found)["lost"]
    note(
        settings_of(ctx),
        f"{node} is lost: its directory is not used any more, and may be removed unless what it "
        "has may be read one day",
    )
    if lost:
        note(
            settings_of(ctx),
            f"{len(lost)} partitions went with it: `tidelog cluster losses "
            f"{shlex.quote(directory)}` lists them",
        )


@cluster.command()
@store_argument("directory")
@click.argument("numbers", metavar="[PARTITION...]", type=int, nargs=-1)
@click.option("--all", "whole", is_flag=True, help="All that are lost, if a copy is left.")
@click.option(
    "--from",
    "source",
    metavar="NODE",
    help="Whose copy, else the best that is left; with --empty who begins.",
)
@click.option("--empty", is_flag=True, help="With nothing, whatever there is; wants --yes.")
@click.option(
    "--yes", is_flag=True, help="Copies that are away, or all that are left, do not count."
)
@click.pass_context
def reset(
    ctx: click.Context,
    directory: str,
    numbers: tuple[int, ...],
    whole: bool,
    source: str | None,
    empty: bool,
    yes: bool,
) -> None:
    """Let each PARTITION that is lost go on: from the best copy that is left, or with nothing.

    What that copy lacks is lost for good. Start everybody before who may have a newer one.
    """
    place = shlex.quote(directory)
    if whole == bool(numbers) or (whole and empty):
        raise UsageError(
            "--all excludes numbers of partitions, and --empty"
            if whole
            else "no partition is named",
            hint=f"`tidelog cluster losses {place}` tells which are lost: name those that are "
            "meant.",
        )
    found = found_cluster(directory)
    if source is not None:
        found.member(source)
    if empty and not yes:
        raise RefusedError(
            "no copy that is left would count, and what was in these partitions would be lost",
            hint="Without --empty they go on from the best copy that is left. If there is none, "
            "give --yes, too.",
        )
    lost = told_losses(directory, found)["lost"]
    if whole and not lost:
        note(settings_of(ctx), "no partition is lost")
    numbers = tuple(lost) if whole else tuple(dict.fromkeys(numbers))
    for number in sorted({*numbers} - {*lost}):  # before anything is done
        picture, _, _ = showing.look_at(directory, found, number)
        check_reset(directory, picture, number, source)
    without: list[int] = []
    for number in numbers:
        picture, share, _ = showing.look_at(directory, found, number)
        check_reset(directory, picture, number, source)
        if not yes:
            check_nobody_is_away(directory, picture, share)
        if source is not None:
            name = source
        elif empty:
            name = next(one for one, answer in picture.answers.items() if answer.status)
        elif (best := best_copy(picture)) is not None:
            name = best
        else:
            without.append(number)
            continue
        reset_partition(directory, found, number, name, empty=empty)
        what = f"begins with nothing, at {name}" if empty else f"goes on from the copy of {name}"
        note(settings_of(ctx), f"partition {number} {what}")
    if without:
        named = " ".join(map(str, without))
        raise NotFoundError(
            f"nobody who answers has a copy of {partitions_text(without)}",
            hint="Start whoever may have one; or let that begin with nothing: `tidelog cluster "
            f"reset {place} {named} --empty --yes`.",
        )


@cluster.command()
@store_argument("directory")
@click.option("--lost", multiple=True, metavar="NODE", help="A member whose disk is gone.")
@click.option("--yes", is_flag=True, help="Most of the members are gone for good.")
@click.pass_context
def rescue(ctx: click.Context, directory: str, lost: tuple[str, ...], yes: bool) -> None:
    """Make a new cluster of the members that are left, when most of them are gone for good.

    Lost are those that --lost names, and those without a directory. It has another history; what
    only the others had is lost, and `reset` lets it go on. Behind it: `up`.
    """
    settings = settings_of(ctx)
    read_cluster(directory)
    with changing(directory):
        found = read_cluster(directory)
        names = [member.name for member in found.members]
        strangers = [name for name in lost if name not in names]
        if strangers and (len(strangers) < len(lost) or not found.was_rescued):
            found.member(strangers[0])  # which raises
        if strangers:
            note(
                settings,
                f"{', '.join(strangers)}: not of the cluster any more; its members are "
                f"{', '.join(names)}",
            )
            return
        left = members_left(directory, found, lost)
        if not left:
            raise UsageError(
                "no member is left", hint="Name fewer of them with --lost, or bring a disk back."
            )
        if not yes:
            others = ", ".join(one.name for one in found.left if one.name not in left)
            raise RefusedError(
                f"{others} could never come back, and what only they have would be lost",
                hint="If a majority of the members can be started again, start them. If not, give "
                "--yes.",
            )
        topology = rescue_cluster(directory, found, left)
    place = shlex.quote(directory)
    note(
        settings,
        f"{', '.join(left)}: a cluster of its own now, which `tidelog cluster up --dir {place}` "
        "starts",
    )
    if topology.lost:
        note(
            settings,
            f"{len(topology.lost)} partitions are lost: `tidelog cluster losses {place}` lists "
            "them once it runs",
        )


@cluster.command()
@store_argument("directory")
@click.argument("chosen", metavar="[POLICY]", type=click.Choice(LOSS_POLICIES), required=False)
@click.pass_context
def policy(ctx: click.Context, directory: str, chosen: LossPolicy | None) -> None:
    """Show or choose what else happens when partitions are lost.

    read-write-safe: nothing, all others are served. read-only-safe: nothing is written to others of
    their space. ignore: they go on by themselves, from the best copy that is left or with nothing.
    """
    found = found_cluster(directory)
    if chosen is None:
        said = "nobody answers that tells which policy there is"
        click.echo(told_losses(directory, found, said=said)["policy"])
    else:
        choose_policy(directory, found, chosen)
        note(settings_of(ctx), f"the policy is {chosen}")


@cluster.group(cls=LazyGroup)
def baseline() -> None:
    """Show and change who votes, and who holds data."""


baseline.add_command(showing.show)


@baseline.command()
@store_argument("directory")
@click.argument("node")
@click.pass_context
def add(ctx: click.Context, directory: str, node: str) -> None:
    """Let NODE, which has joined, enter the baseline; return when it has its part of the data."""
    seat = _change(ctx, directory, node, wanted=True)
    note(settings_of(ctx), f"{node} votes, and holds {_held(seat)}")


@baseline.command()
@store_argument("directory")
@click.argument("node")
@click.pass_context
def remove(ctx: click.Context, directory: str, node: str) -> None:
    """Let others hold what NODE holds, and then let it vote no more; return when that is so."""
    _change(ctx, directory, node, wanted=False)
    note_out(directory, node, True)
    voting = look(directory, found_cluster(directory)).voting
    note(settings_of(ctx), f"{node} has left: it holds nothing, votes no more, and may be ended")
    note(
        settings_of(ctx),
        "once it has ended its directory may be removed; with it, it may enter again",
    )
    if len(voting) in (1, 2):
        all_of = "that one has" if len(voting) == 1 else "both have"
        note(
            settings_of(ctx),
            f"{' and '.join(voting)} vote{'s' * (len(voting) == 1)} now: {all_of} to be there for "
            "anything to be served",
        )


def _change(ctx: click.Context, directory: str, node: str, *, wanted: bool) -> Seat:
    """Ask for a member to enter or to leave, and wait until it has."""
    found = found_cluster(directory)
    found.member(node)
    picture = look(directory, found)
    if wanted:
        check_may_come(directory, picture, found.member(node))
    elif picture.is_lost(found.member(node)):
        raise RefusedError(
            f"{node} was declared lost: it has left, and holds nothing to hand over",
            hint="`tidelog cluster baseline show "
            f"{shlex.quote(directory)}` tells who votes, and who holds data.",
        )
    seats = {seat.member: seat for seat in seats_of(picture, shares_of(picture))}
    if node in seats and seats[node].stage == "joining":
        raise UsageError(
            f"{node} has not joined yet: the cluster does not know it",
            hint=f"Let it join: `tidelog cluster join {shlex.quote(directory)} {node}`.",
        )
    if wanted and picture.state_of(node) != "up":
        raise UsageError(
            f"{node} does not run, and who is not there does not enter",
            hint=f"Start it: {start_text(directory, node)}.",
        )
    if wanted:
        note_out(directory, node, False)
    want(directory, found, node, wanted, picture.majority)
    stage = "in" if wanted else "out"
    tell = partial(note, settings_of(ctx))
    with telling_if_interrupted(lambda: [_goes_on(directory)]):
        return wait_until(directory, node, lambda seat: seat.stage == stage, tell)


def _goes_on(directory: str) -> str:
    return (
        "interrupted: what was asked for stays asked for; `tidelog cluster baseline show "
        f"{shlex.quote(directory)}` tells how far it is, and what it waits for"
    )


def _has_come(seat: Seat) -> bool:
    return seat.stage in ("in", "waiting", "out")


def _held(seat: Seat) -> str:
    return (
        "nothing" if seat.voter else f"a copy of {seat.copies} partition{'s' * (seat.copies != 1)}"
    )
