"""The command ``tidelog``: the outermost group, which loads each command when it is asked for."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from types import TracebackType

import click

from .. import __version__
from .shell.commands import RootGroup
from .shell.signals import end_at_once

_COMMANDS = {
    "kv": ("tidelog.tools.kv.cli:kv", "Read and write keys of a store."),
    "wal": ("tidelog.tools.wal.cli:wal", "Look into a log: list, dump, verify, count."),
    "db": ("tidelog.tools.db.cli:db", "Look after a store: info, verify, backup, restore."),
    "spark": (
        "tidelog.tools.spark.cli:spark",
        "Export, compare and audit stores, here or in Spark.",
    ),
    "cluster": (
        "tidelog.tools.cluster.cli:cluster",
        "Run a cluster on this machine, to try things with.",
    ),
    "tx": (
        "tidelog.tools.tx.cli:tx",
        "Look at transactions of a cluster, and end those in doubt.",
    ),
    "server": ("tidelog.tools.server.cli:server", "Make and run a member of a cluster."),
    "sim": (
        "tidelog.tools.sim.cli:sim",
        "Run simulated clusters under faults, and check them.",
    ),
    "demo": (
        "tidelog.tools.demo.cli:demo",
        "Load real data, kill a writer, recover, and prove it.",
    ),
    "completion": (
        "tidelog.tools.completion:completion",
        "Print the script by which bash, zsh or fish complete.",
    ),
    "version": ("tidelog.tools.version:version", "Show the versions of tidelog and its formats."),
}

_EPILOG = """\b
Examples:
  tidelog kv put shop.tl stock apples 3 --create
  tidelog kv scan shop.tl stock --prefix a
  tidelog wal dump shop.tl --map stock --key apples
  tidelog db info shop.tl --json
"""


@click.group(cls=RootGroup, lazy=_COMMANDS, epilog=_EPILOG)
@click.version_option(__version__, prog_name="tidelog", message="%(prog)s %(version)s")
def cli() -> None:
    """Tidelog: an event-sourced, transactional key-value store whose log is the truth.

    Results go to stdout, everything else to stderr. Exit codes: 0 done, 2 usage, 3 something was
    found, 4 not found, 7 refused; docs/cli.md has them all.
    """


def main() -> None:
    """Run the command line of this process."""
    end_at_once()
    if "--debug" not in sys.argv:
        sys.excepthook = _unexpected
    occupy_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # A path that is not UTF-8 is shown as on stderr; in JSON that is an escape, too.
        sys.stdout.reconfigure(errors="backslashreplace")
    cli.main()


def occupy_standard_streams() -> None:
    """Open what the caller has closed of the standard streams, before a file takes its place.

    Else the next file that is opened would be number 1, say, and results would go into the data.
    Using a closed stream fails as it does for other programs, but for stderr, whose text is lost.
    """
    streams = ("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)
    for number, (name, wrong_way) in enumerate(streams):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, wrong_way)
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _unexpected(
    kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    """Show a bug in three lines; the interpreter then ends with 1 (``exits.Exit.FAILURE``)."""
    click.echo(
        f"error: {kind.__name__}: {error}  [TL-CLI-999]\n"
        "  where: inside tidelog; this is a bug\n"
        "  next:  run it again with --debug and report what it prints",
        err=True,
    )
