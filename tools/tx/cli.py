"""``tidelog tx``: transactions of several partitions of a cluster that runs.

    pending   what is prepared and has not ended, and what is in doubt
    show      what each member has of one transaction
    outcome   what became of one
    resolve   ends one that is in doubt

Invariants:

- What a command can tell or refuse without members comes first; then all are asked side by side how
  they are, and only who answers that, in time, is asked for more.
- Nothing is ended by hand that could end by itself, that somebody has committed, or that the user
  has not said may be wrong: it cannot be taken back.

Left out: what a resolution does (``engine.node.in_doubt``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from ...affinity.errors import (
    DeadlineError,
    NotEnoughMembersError,
    NotFoundError,
    PartitionUnavailableError,
    UsageError,
)
from ...engine.client.blocking import connect
from ...engine.client.places import TCP
from ...engine.commit.outcomes import check_receipt_home
from ..cluster.cluster_file import LocalCluster, LocalMember
from ..cluster.elsewhere import found_cluster
from ..cluster.losing import resolved_rows, told_losses
from ..cluster.questions import talking
from ..cluster.running import ANSWER_S_MAX, ask_somebody, look
from ..cluster.shares import shares_of
from ..cluster.standing import Picture
from ..db.inspection import inspected
from ..db.stores import is_store
from ..server.members import parsed_address
from ..shell.commands import LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import Exit, RefusedError
from ..shell.terminal import note, write_fields, write_json, write_rows
from .told import (
    PART_COLUMNS,
    PENDING_COLUMNS,
    home_in,
    numbers_in,
    part_rows,
    part_text,
    pending_in,
    pending_of,
    pending_rows,
    pending_text,
)

SCHEMA = 1
LOG_S_MAX = 30.0
"""Seconds that a member gets to look into its log."""
OUTCOME_S_MAX = 5.0
"""Seconds that the home of a transaction gets to tell what became of it."""
OUTCOME_EXITS = {
    "committed": Exit.DONE,
    "rolled_back": Exit.ABORTED,
    "too_old": Exit.NOT_FOUND,
    "unknown": Exit.UNKNOWN,
}


@click.group(cls=LazyGroup)
def tx() -> None:
    """Look at transactions of a cluster, and end those in doubt."""


@tx.command()
@store_argument("directory")
@json_options
@click.pass_context
def pending(ctx: click.Context, directory: str, form: str) -> None:
    """Show what is prepared in several partitions and has not ended, and what is in doubt.

    DIRECTORY may be that of a member that does not run: then it is shown what that has alone.
    """
    settings = settings_of(ctx)
    if is_store(directory):
        with inspected(directory, of_members=True) as store:
            rows = pending_rows(pending_in(directory, store.state).values(), {}, (), {})
    else:
        found = found_cluster(directory)
        picture = look(directory, found)
        told = _ask_all(ctx, directory, found, picture, "transactions")
        shares = shares_of(picture)
        names = {member.id: member.name for member in found.members}
        rows = pending_rows(pending_of(told).values(), told, shares, names)
    if form == "text":
        write_rows(settings, PENDING_COLUMNS, list(map(pending_text, rows)))
        if any(row["in_doubt"] for row in rows):
            note(
                settings,
                "in doubt: start who has the partitions without a primary; if they never come "
                f"back, `tidelog tx resolve {shlex.quote(directory)} ID` ends one",
            )
    elif form == "json":
        write_json({"v": SCHEMA, "type": "transactions", "transactions": rows})
    else:
        for row in rows:
            write_json({"v": SCHEMA, "type": "transaction", **row})


@tx.command()
@store_argument("directory")
@click.argument("tx_id", metavar="ID")
@json_options
@click.pass_context
def show(ctx: click.Context, directory: str, tx_id: str, form: str) -> None:
    """Show what each member has of the transaction ID, and what was decided of it by hand."""
    settings, found = settings_of(ctx), found_cluster(directory)
    name = _id_of(tx_id)
    rows, there = _parts(ctx, directory, found, name)
    resolution = _resolution(directory, found, name, there)
    if form != "text":
        fields = {"tx": name.hex(), "resolution": resolution, "parts": rows}
        return write_json({"v": SCHEMA, "type": "transaction", **fields})
    if not rows and resolution is None:
        raise NotFoundError(
            f"nobody who answers knows of transaction {name.hex()}",
            hint="Of an id that a user gave the log has each try under another one: "
            f"`tidelog tx outcome {shlex.quote(directory)} {name.hex()}` tells of it. Else the log "
            "may be gone, or who has it is away: "
            f"`tidelog cluster status {shlex.quote(directory)}`.",
        )
    write_rows(settings, PART_COLUMNS, list(map(part_text, rows)))
    if resolution is not None:
        click.echo()
        write_fields(settings, resolution)
    return None


@tx.command()
@store_argument("directory")
@click.argument("tx_id", metavar="ID")
@click.option("--home", type=int, help="The partition that has its outcome, if ID was not given.")
@json_options
@click.pass_context
def outcome(ctx: click.Context, directory: str, tx_id: str, home: int | None, form: str) -> None:
    """Tell what became of the transaction ID, as `db.outcome` does.

    What is not known, and never can be, is refused for good by that. Ends with 0 if it has
    committed, 5 if it is rolled back, 4 if that is too old to tell, and 9 if nobody can tell now.
    """
    found, name = found_cluster(directory), _id_of(tx_id)
    check_receipt_home(home, found.partitions)
    rows: list[dict[str, Any]] = []
    told: str
    resolution = None
    try:
        rows, there = _parts(ctx, directory, found, name)
        home = home_in(rows) if home is None else home
        resolution = _resolution(directory, found, name, there)
        answering = ",".join(member.address for member in there)
        with connect(f"{TCP}{answering}", timeout=OUTCOME_S_MAX) as db:
            told = db.outcome(name, home=home)
    except (PartitionUnavailableError, NotEnoughMembersError, DeadlineError):
        told = "unknown" if resolution is None else resolution["outcome"]
    fields = {"tx": name.hex(), "outcome": told, "numbers": numbers_in(rows)}
    if form == "text":
        click.echo(told.replace("_", " "))
        for row in numbers_in(rows):
            first, last = row["numbers"]
            click.echo(f"partition {row['partition']}, epoch {row['epoch']}: {first}-{last}")
    else:
        write_json({"v": SCHEMA, "type": "outcome", **fields})
    ctx.exit(OUTCOME_EXITS[told])


@tx.command()
@store_argument("directory")
@click.argument("tx_id", metavar="ID")
@click.option("--commit", "commits", is_flag=True, help="It ends as committed.")
@click.option("--rollback", "rolls_back", is_flag=True, help="It ends as rolled back.")
@click.option("--yes", is_flag=True, help="Who is away may have told something else.")
@click.pass_context
def resolve(
    ctx: click.Context, directory: str, tx_id: str, commits: bool, rolls_back: bool, yes: bool
) -> None:
    """End the transaction ID, which is in doubt: a partition of it has no primary.

    All partitions obey, those that are away as soon as they are back, and the losses list it.
    """
    found, name = found_cluster(directory), _id_of(tx_id)
    if commits == rolls_back:
        raise UsageError(
            "--commit and --rollback exclude each other" if commits else "say how it is to end",
            hint="Give --commit, by which what is away may lack its part; or --rollback, by which "
            "a client may have been told that it had committed.",
        )
    if not yes:
        what = (
            "what is away may have refused its part, or lose it, and half of it would stay"
            if commits
            else "a client may have been told that it has committed, and would lose it"
        )
        raise RefusedError(
            what,
            hint="If who is away can be started, start it: then it ends by itself. If not, give "
            "--yes.",
        )
    rows, _ = _parts(ctx, directory, found, name)
    _check_committed(directory, rows, name, commits=commits)
    holders = [row["member"] for row in rows if row["outcome"] == "pending"]
    primaries = [
        row["member"] for row in rows if row["outcome"] == "pending" and row["here"] == "primary"
    ]
    members = [found.member(one) for one in dict.fromkeys(primaries or holders)]
    if not members:
        raise NotFoundError(
            f"transaction {name.hex()} is pending at nobody who answers",
            hint=f"`tidelog tx show {shlex.quote(directory)} {name.hex()}` tells what is known.",
        )
    said = f"transaction {name.hex()} was not ended"
    ask_somebody(directory, found, said, "resolve", name, commits, others=members)
    ended = "has committed" if commits else "is rolled back"
    note(
        settings_of(ctx),
        f"transaction {name.hex()} {ended}; `tidelog cluster losses {shlex.quote(directory)}` "
        "lists it",
    )


def _check_committed(
    directory: str, rows: list[dict[str, Any]], name: bytes, *, commits: bool
) -> None:
    """Raise if a partition has ended it otherwise: half of it would stay."""
    ended = "rolled_back" if commits else "committed"
    counted = [row for row in rows if row["here"] != "stale"]
    places = [row["partition"] for row in counted if row["outcome"] == ended]
    if places:
        told = ended.replace("_", " ")
        raise RefusedError(
            f"transaction {name.hex()} is {told} in partition {places[0]} already",
            hint=f"Let it end in the same way: `tidelog tx resolve {shlex.quote(directory)} "
            f"{name.hex()} {'--rollback' if commits else '--commit'}`, or wait until it has.",
        )


def _id_of(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise UsageError(
            f"{text!r} is not the id of a transaction", hint="Give its 32 hexadecimal digits."
        )
    return found


def _parts(
    ctx: click.Context, directory: str, found: LocalCluster, name: bytes
) -> tuple[list[dict[str, Any]], list[LocalMember]]:
    """Return what each member has of a transaction, and who has told that."""
    picture = look(directory, found)
    told = _ask_all(ctx, directory, found, picture, "transaction", name, seconds=LOG_S_MAX)
    there = [member for member in found.left if member.name in told]
    return part_rows(told, shares_of(picture)), there


def _resolution(
    directory: str, found: LocalCluster, name: bytes, there: list[LocalMember]
) -> dict[str, Any] | None:
    """Return what was decided of a transaction by hand, as one of those tells who are there."""
    rows = resolved_rows(told_losses(directory, found, there))
    return next((row for row in rows if row["tx"] == name.hex()), None)


def _ask_all(
    ctx: click.Context,
    directory: str,
    found: LocalCluster,
    picture: Picture,
    operation: str,
    *arguments: object,
    seconds: float = ANSWER_S_MAX,
) -> Mapping[str, Any]:
    """Return what each member answers, by name; who does not is named beside the result.

    Who has not told in the picture how it is is not asked.  ``NotEnoughMembersError`` if nobody
    answers.
    """

    def answer_of(member: LocalMember) -> Any:
        try:
            address = parsed_address(member.address)
            with talking(address, found.cluster.bytes, seconds) as member_says:
                return member_says.ask(operation, *arguments)
        except OSError as error:
            return error

    seen = picture.answers
    for name, answer in seen.items():
        if answer.pid and answer.status is None:
            note(settings_of(ctx), f"{name} does not answer: {answer.problem}")
    members = [member for member in found.left if seen[member.name].status is not None]
    with ThreadPoolExecutor(max(len(members), 1)) as pool:
        answers = list(pool.map(answer_of, members))
    told = {}
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, OSError):
            note(settings_of(ctx), f"{member.name} does not answer: {answer.strerror or answer}")
        else:
            told[member.name] = answer
    away = [name for name, answer in seen.items() if not answer.pid]
    if away:
        note(settings_of(ctx), f"{', '.join(away)}: not there, so what only they have is not told")
    if not told:
        raise NotEnoughMembersError(
            "nobody tells of transactions: no member "
            + ("runs" if len(away) == len(seen) else "answers"),
            hint=f"`tidelog cluster status {shlex.quote(directory)}` tells what is in the way.",
        )
    return told
