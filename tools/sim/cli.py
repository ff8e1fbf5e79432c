"""``tidelog sim``: simulated clusters through storms of faults, one for each seed.

Left out: what is run, and the search for less that fails (``storming``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import click

from ...affinity.errors import UsageError
from ...affinity.rows import REPLICAS_MAX
from ...engine.client.copies import ReadFrom
from ...testing.storm_faults import parsed_fault
from ...testing.storms import chosen_clients
from ..shell.commands import ToolCommand, json_options, settings_of
from ..shell.exits import Exit
from ..shell.terminal import progress, telling_if_interrupted, write_json
from .storming import Shape, Verdict, judged_seeds, parsed_numbers

SCHEMA = 1
JOBS_MAX = 64
NODES, NODES_MAX = 3, 9
BACKUPS_MAX = min(REPLICAS_MAX, NODES_MAX) - 1


@click.command(cls=ToolCommand)
@click.option("--seeds", required=True, help="Which seeds: 17, 1-200 or 3,9-12.")
@click.option(
    "--jobs",
    type=click.IntRange(1, JOBS_MAX),
    default=1,
    show_default=True,
    help="Processes that run storms at the same time.",
)
@click.option(
    "--nodes",
    type=click.IntRange(2, NODES_MAX),
    default=NODES,
    show_default=True,
    help="Members of each cluster.",
)
@click.option(
    "--backups",
    type=click.IntRange(0, BACKUPS_MAX),
    default=0,
    show_default=True,
    help="Copies of each partition beside the first one.",
)
@click.option("--growing", is_flag=True, help="Members join, leave and lose their disks, too.")
@click.option("--transactions", is_flag=True, help="Over keys of any partitions, too.")
@click.option(
    "--read-from",
    type=click.Choice(get_args(ReadFrom)),
    default="primary",
    show_default=True,
    help="Who answers the reads of every second machine.",
)
@click.option("--clients", "working", help="Only these clients: 4, 0-9 or 3,10-13.")
@click.option(
    "--fault", "lines", multiple=True, help="A fault instead of those of the seed, as a line."
)
@click.option("--no-faults", is_flag=True, help="No faults at all.")
@json_options
@click.pass_context
def sim(
    ctx: click.Context,
    seeds: str,
    jobs: int,
    nodes: int,
    backups: int,
    growing: bool,
    transactions: bool,
    read_from: ReadFrom,
    working: str | None,
    lines: tuple[str, ...],
    no_faults: bool,
    form: str,
) -> None:
    """Run simulated clusters under clients and faults, and check what the clients were told.

    A seed decides the faults, the clients and every accident. Each failure is told with as few
    faults and clients as it takes, and with the command that shows it again. Ends with 3 if there
    is any.
    """
    if lines and no_faults:
        raise UsageError("--fault and --no-faults exclude each other", hint="Leave one out.")
    if growing and (lines or no_faults):
        raise UsageError("--growing is about the faults of the seed", hint="Leave one out.")
    if backups >= nodes:
        raise UsageError(
            f"{backups} backups cannot be had with {nodes} members",
            hint=f"Give at most {nodes - 1}, or more --nodes.",
        )
    faults = tuple(str(parsed_fault(line, nodes)) for line in lines) if lines else None
    wanted = parsed_numbers(seeds, "seeds")
    clients = None if working is None else tuple(parsed_numbers(working, "clients"))
    if clients is not None:
        clients = chosen_clients(clients, transactions=transactions)
    failed: list[Verdict] = []
    done = 0

    def told() -> Iterator[str]:
        yield f"interrupted: {done} of {len(wanted)} seeds ran, {len(failed)} failed"

    settings = settings_of(ctx)
    with telling_if_interrupted(told), progress(settings, "storms", len(wanted)) as advance:
        for verdict in judged_seeds(
            wanted,
            Shape(nodes, backups, growing, transactions, clients, read_from),
            () if no_faults else faults,
            jobs,
        ):
            done += 1
            advance(1)
            if verdict.failure is None:
                continue
            failed.append(verdict)
            if form == "text":
                _show(verdict)
            elif form == "jsonl":
                write_json({"v": SCHEMA, "type": "failure", **_fields(verdict)})
    if form == "text":
        click.echo(f"seeds: {len(wanted)}, failed: {len(failed)}")
    else:
        summary = {"v": SCHEMA, "type": "storms", "seeds": len(wanted), "failed": len(failed)}
        if form == "json":
            failed.sort(key=lambda one: one.seed)
            summary["failures"] = [_fields(verdict) for verdict in failed]
        write_json(summary)
    if failed:
        ctx.exit(Exit.FOUND)


def _fields(verdict: Verdict) -> dict[str, object]:
    shape = verdict.shape
    return {
        "seed": verdict.seed,
        "nodes": shape.nodes,
        "backups": shape.backups,
        "read_from": shape.read_from,
        "failure": verdict.failure,
        "faults": list(verdict.faults),
        "clients": None if shape.clients is None else list(shape.clients),
        "command": verdict.command,
    }


def _show(verdict: Verdict) -> None:
    click.echo(f"seed {verdict.seed}: {verdict.failure}")
    for fault in verdict.faults:
        click.echo(f"  fault: {fault}")
    if verdict.shape.clients is not None:
        click.echo(f"  clients: {', '.join(map(str, verdict.shape.clients))}")
    click.echo(f"  again: {verdict.command}")
