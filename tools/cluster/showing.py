"""The commands of ``tidelog cluster`` that show something, and change nothing.

Invariants:

- What is shown is what members tell, at about one time; who does not answer is named.
- As text, a table on a terminal; with ``--json`` one object, or one for each row.

Left out: what is shown of it (``tables``, ``stories`` and their like), and commands that do
something (``cli``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ...affinity.errors import NotEnoughMembersError, NotFoundError, PartitionUnavailableError
from ..shell.commands import ToolCommand, json_options, settings_of, store_argument
from ..shell.exits import Exit
from ..shell.terminal import note, visible, write_fields, write_json, write_rows
from .baseline import (
    SEAT_COLUMNS,
    advice,
    baseline_fields,
    changes_text,
    seat_text,
    seats_of,
)
from .blocks import Blocker, blocks_about, blocks_of, names_text
from .cluster_file import LocalCluster
from .elsewhere import found_cluster
from .exchanges import EXCHANGE_COLUMNS, exchange_text, exchanges_of
from .gaps import GAP_COLUMNS, gap_rows, gap_text
from .losing import (
    LOSS_COLUMNS,
    RESOLVED_COLUMNS,
    loss_rows,
    loss_text,
    resolved_rows,
    told_losses,
)
from .running import look
from .shares import Share, shares_of
from .standing import Picture
from .stories import (
    COPY_COLUMNS,
    RETURN_COLUMNS,
    copy_text,
    has_told,
    return_text,
    returns_of,
    story_of,
    story_text,
)
from .tables import (
    NODE_COLUMNS,
    PARTITION_COLUMNS,
    blocks_text,
    node_rows,
    partition_rows,
    partition_text,
    summary_of,
    summary_text,
)

SCHEMA = 1
EXCHANGES = 10
PLURALS = {"loss": "losses"}


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def status(ctx: click.Context, directory: str, form: str) -> None:
    """Show who is there, who leads, how much is served, and what is in the way.

    Ends with 6 while a partition is not served.
    """
    picture = look(directory, found_cluster(directory))
    shares = shares_of(picture)
    blocks = blocks_of(picture, shares, directory)
    fields = summary_of(picture, shares, blocks)
    if form == "text":
        write_fields(settings_of(ctx), summary_text(fields))
        _write_blocks(blocks)
    else:
        write_json({"v": SCHEMA, "type": "cluster", **fields})
    if fields["partitions_served"] < fields["partitions"]:
        ctx.exit(Exit.UNAVAILABLE)


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def nodes(ctx: click.Context, directory: str, form: str) -> None:
    """Show each member: its process, whether it votes, its lease, what it serves.

    Ends with 6 if none of them answers.
    """
    picture = look(directory, found_cluster(directory))
    _write_all(ctx, form, "node", node_rows(picture), NODE_COLUMNS)
    if not picture.statuses:
        ctx.exit(Exit.UNAVAILABLE)


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def partitions(ctx: click.Context, directory: str, form: str) -> None:
    """Show each partition: whether it is served, by whom, and who has copies."""
    rows = partition_rows(shares_of(_told(directory, "partitions")))
    if not rows:
        place = shlex.quote(directory)
        note(settings_of(ctx), f"nobody tells of any: `tidelog cluster status {place}` says why")
    _write_all(ctx, form, "partition", rows, PARTITION_COLUMNS, partition_text)


@click.command(cls=ToolCommand)
@store_argument("directory")
@click.argument("number", metavar="PARTITION", type=int)
@json_options
@click.pass_context
def partition(ctx: click.Context, directory: str, number: int, form: str) -> None:
    """Show one PARTITION: what was decided, what each member has of it, and what is in the way."""
    found = found_cluster(directory)
    picture, share, blocks = look_at(directory, found, number)
    blocks = blocks_about(share, blocks)
    story = story_of(picture, share, blocks)
    if form == "text":
        settings = settings_of(ctx)
        write_fields(settings, story_text(story))
        click.echo()
        write_rows(settings, COPY_COLUMNS, list(map(copy_text, story["members"])))
        _write_blocks(blocks)
    else:
        write_json({"v": SCHEMA, "type": "story", **story})


@click.command(cls=ToolCommand)
@store_argument("directory")
@click.argument("number", metavar="PARTITION", type=int)
@json_options
@click.pass_context
def explain(ctx: click.Context, directory: str, number: int, form: str) -> None:
    """Tell how copies came back to a PARTITION: with what, why, and what would have changed it."""
    picture, share, _ = look_at(directory, found_cluster(directory), number)
    rows = returns_of(picture)
    if not has_told(picture, share.primary):
        does = "tells nothing now" if picture.state_of(share.primary) == "up" else "does not answer"
        _without_primary(ctx, directory, share, does, told=bool(rows))
    if form != "text":
        fields = {"partition": number, "primary": share.primary, "returns": rows}
        write_json({"v": SCHEMA, "type": "explanation", **fields})
    elif rows:
        write_rows(settings_of(ctx), RETURN_COLUMNS, list(map(return_text, rows)))
    else:
        settings = settings_of(ctx)
        note(
            settings,
            f"{share.primary} has seen nobody come back to partition {number} since it was started",
        )
        if away := picture.away():
            note(settings, f"{names_text(away)} did not answer: what was seen there is not told")


@click.command(cls=ToolCommand)
@store_argument("directory")
@click.option(
    "--last",
    type=click.IntRange(1),
    default=EXCHANGES,
    show_default=True,
    help="Exchanges to show; members remember some tens.",
)
@json_options
@click.pass_context
def exchanges(ctx: click.Context, directory: str, last: int, form: str) -> None:
    """Show the last changes of who serves and holds what: why, how long, and what blocks now."""
    picture = _told(directory, "exchanges", last)
    rows = exchanges_of(picture, last)
    settings = settings_of(ctx)
    if away := picture.away():
        note(
            settings,
            f"{names_text(away)} did not answer: how long takeovers took there is not told",
        )
    if not rows:
        note(settings, "nobody who answers has seen an exchange since it was started")
    _write_all(ctx, form, "exchange", rows, EXCHANGE_COLUMNS, exchange_text)


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def losses(ctx: click.Context, directory: str, form: str) -> None:
    """Show which partitions are lost, what became of those that were, and what was ended by that.

    Those are transactions in doubt, which somebody has ended by hand or a reset has.
    """
    found = found_cluster(directory)
    told = told_losses(directory, found)
    rows, lost = loss_rows(found, told), list(map(int, told["lost"]))
    resolved = resolved_rows(told)
    fields = {"policy": told["policy"], "history": bytes(told["history"]).hex(), "lost": lost}
    if form != "text":
        more = {**fields, "resolved": resolved}
        _write_all(ctx, form, "loss", rows, LOSS_COLUMNS, loss_text, more)
        if form == "jsonl":
            _write_all(ctx, form, "resolution", resolved, RESOLVED_COLUMNS)
        return
    settings = settings_of(ctx)
    write_fields(settings, fields)
    for columns, shown in (
        (LOSS_COLUMNS, list(map(loss_text, rows))),
        (RESOLVED_COLUMNS, resolved),
    ):
        if shown:
            click.echo()
            write_rows(settings, columns, shown)
    if lost:
        place = shlex.quote(directory)
        note(
            settings,
            f"`tidelog cluster reset {place} --all` lets go on what somebody has a copy of, and "
            "names the rest",
        )


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def gaps(ctx: click.Context, directory: str, form: str) -> None:
    """Show which copies lack numbers below their HWM, and which."""
    picture = _told(directory, "gaps")
    rows = gap_rows(picture, shares_of(picture))
    _write_all(ctx, form, "gap", rows, GAP_COLUMNS, gap_text)


@click.command(cls=ToolCommand)
@store_argument("directory")
@json_options
@click.pass_context
def show(ctx: click.Context, directory: str, form: str) -> None:
    """Show each member: whether it votes, what it holds, what comes to it and what goes."""
    picture = _told(directory, "the baseline")
    shares = shares_of(picture)
    if form != "text":
        return write_json({"v": SCHEMA, "type": "baseline", **baseline_fields(picture, shares)})
    seats = seats_of(picture, shares)
    write_rows(settings_of(ctx), SEAT_COLUMNS, list(map(seat_text, seats)))
    click.echo()
    told = advice(seats, directory)
    if not picture.majority:
        block = blocks_of(picture, shares, directory)[0]
        told = [block.text, f"next: {block.next}"]
    for line in [changes_text(seats, shares) or "nothing moves", *told]:
        click.echo(visible(line))
    return None


def _told(directory: str, what: str, exchanges: int = 0) -> Picture:
    """Return what members tell, and so many exchanges; ``NotEnoughMembersError`` if none does."""
    picture = look(directory, found_cluster(directory), None, exchanges)
    if not picture.statuses:
        [block] = blocks_of(picture, (), directory)
        raise NotEnoughMembersError(f"nobody tells of {what}: {block.text}", hint=f"{block.next}.")
    return picture


def look_at(
    directory: str, found: LocalCluster, number: int
) -> tuple[Picture, Share, list[Blocker]]:
    """Return what is told of a partition; ``NotFoundError`` and ``NotEnoughMembersError``."""
    if not 0 <= number < found.partitions:
        raise NotFoundError(
            f"there is no partition {number}", hint=f"Name one of 0 to {found.partitions - 1}."
        )
    picture = look(directory, found, number)
    shares = shares_of(picture)
    blocks = blocks_of(picture, shares, directory)
    if not shares:
        raise NotEnoughMembersError(
            f"nobody tells of partition {number}: "
            + (blocks[0].text if blocks else "no member that answers knows of it yet"),
            hint=f"{blocks[0].next}." if blocks else "Wait a moment, and ask again.",
        )
    return picture, shares[number], blocks


def _without_primary(
    ctx: click.Context, directory: str, share: Share, does: str, *, told: bool
) -> None:
    """Say that who serves a partition tells nothing of it; raise if nobody else has told either."""
    text = f"{share.primary}, the primary of partition {share.partition}, {does}"
    if told:
        note(settings_of(ctx), f"{text}: what follows is of those that have served it before")
        return
    raise PartitionUnavailableError(
        f"{text}, and only it could tell who has come back",
        partition=share.partition,
        hint=f"`tidelog cluster partition {shlex.quote(directory)} {share.partition}` tells what "
        "is in the way.",
    )


def _write_blocks(blocks: Sequence[Blocker]) -> None:
    click.echo()
    for line in blocks_text(blocks):
        click.echo(visible(line))


def _write_all(
    ctx: click.Context,
    form: str,
    kind: str,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    text_of: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda row: row,
    fields: Mapping[str, Any] = {},
) -> None:
    """Write rows of a kind: as a table, in one object with ``fields``, or in an object each."""
    if form == "text":
        write_rows(settings_of(ctx), columns, list(map(text_of, rows)))
    elif form == "json":
        plural = PLURALS.get(kind, f"{kind}s")
        write_json({"v": SCHEMA, "type": plural, **fields, plural: rows})
    else:
        for row in rows:
            write_json({"v": SCHEMA, "type": kind, **row})
