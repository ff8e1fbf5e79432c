"""The shape that all commands share: common options, groups that load late, how errors end.

Invariants:

- A group imports a command's module only when that command is asked for, so that help is quick
  and reading a log loads neither LMDB nor an event loop.
- Whatever a command raises on purpose ends in three lines on stderr and a code of ``exits``; an
  unexpected exception leaves as it is (``main`` shows it).
- A reader that closes the pipe ends the command quietly.

Left out: the commands themselves.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import click

from ...affinity.errors import TidelogError
from .exits import Exit, Terminated, exit_code, missing_extra
from .signals import end_in_order
from .terminal import Settings, logging_to_stderr, show_error

VARIABLE = "_TIDELOG_COMPLETE"
"""Set by a shell that asks for completions."""

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that is not empty: that would be the current directory to some calls."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or raise click's error."""
        if not value:
            self.fail("An empty path names nothing; `.` is the current directory.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=str, readable=False)
"""A path; what stands in its way is told by whoever opens it, with a code of its own."""


class CountRange(click.IntRange):
    """A number of things, no larger than Python can count through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or raise click's error."""
        number = super().convert(value, param, ctx)
        if number > sys.maxsize:
            self.fail(f"{number} is more than the largest number, {sys.maxsize}.", param, ctx)
        return number


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of this invocation."""
    return ctx.ensure_object(Settings)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is None or value is False or value == 0:
        return
    settings = settings_of(ctx)
    assert param.name is not None
    if param.name == "no_progress":
        settings.progress = False
    else:
        setattr(settings, param.name, value)


def common_options() -> list[click.Parameter]:
    """Return the options that can be given anywhere on the command line."""

    def option(*names: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, **more)

    return [
        option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            help="When to use colour; NO_COLOR counts for auto.",
        ),
        option("--no-progress", is_flag=True, help="Show no progress."),
        option("-q", "--quiet", is_flag=True, help="Tell only results and errors."),
        option("-v", "--verbose", count=True, help="Tell more; twice for everything."),
        option("--debug", is_flag=True, help="Show the traceback of an error."),
    ]


class ToolCommand(click.Command):
    """A command with the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**CONTEXT, **self.context_settings}
        self.params += common_options()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command while the log of the product goes to stderr; signals are exceptions."""
        end_in_order()
        with logging_to_stderr(settings_of(ctx)):
            return super().invoke(ctx)


class LazyGroup(click.Group):
    """Commands that are imported when they are asked for.

    ``lazy`` maps a name to (``package.module:attribute``, one line of help).
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})
        self.context_settings = {**CONTEXT, **self.context_settings}
        self.params += common_options()

    command_class = ToolCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of their table."""
        return [*self._lazy, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module."""
        place = self._lazy.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place[0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing the late ones."""
        rows = [(name, text) for name, (_, text) in self._lazy.items()]
        rows += [
            (name, first_clause(self.commands[name].help or "")) for name in sorted(self.commands)
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def first_clause(text: str) -> str:
    """Return what a help text says first, as a sentence of its own."""
    clause = re.split(r"[.;:](?:\s|$)", text.strip(), maxsplit=1)[0]
    return " ".join(clause.split()) + "."


class RootGroup(LazyGroup):
    """The outermost group: turns whatever happens into an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and leave the process with its exit code."""
        settings = extra.setdefault("obj", Settings())
        if VARIABLE in os.environ:
            from .completion import prepare_completion

            prepare_completion()
        try:
            code = super().main(args, prog_name or "tidelog", standalone_mode=False, **extra)
            sys.stdout.flush()
        except (click.Abort, KeyboardInterrupt) as error:
            code = _interrupt_code(error) or Exit.INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = Exit.USAGE
        except (BrokenPipeError, SystemExit) as error:
            # The latter is click's own answer to a closed pipe.
            _leave_pipe()
            code = _interrupt_code(error) or Exit.DONE
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            show_error(settings, missing)
            code = exit_code(missing)
        except (TidelogError, OSError, click.ClickException) as error:
            show_error(settings, error)
            code = exit_code(error)
            _leave_unwritten()
        sys.exit(int(code or Exit.DONE))


def _interrupt_code(error: BaseException) -> Exit | None:
    """Return the exit code of the interrupt behind an error, which click has turned into its own.

    None if there was none.
    """
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, Terminated):
            return Exit.TERMINATED
        if isinstance(behind, KeyboardInterrupt | click.Abort):
            return _interrupt_code(behind.__cause__) if behind.__cause__ else Exit.INTERRUPTED
        behind = behind.__cause__ or behind.__context__
    return None


def _leave_unwritten() -> None:
    """Keep the interpreter's last flush from failing on what could not be written before."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _leave_pipe()


def _leave_pipe() -> None:
    """Let what is still buffered go nowhere, so that the interpreter's own flush is quiet."""
    try:
        descriptor = sys.__stdout__.fileno() if sys.__stdout__ else -1
    except (OSError, ValueError):
        return
    if descriptor >= 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


# ------------------------------------------------------------------ parts of commands


def store_argument(name: str = "store") -> Callable[[F], F]:
    """Add the argument that names a store, which errors then name too."""

    def remember(ctx: click.Context, _param: click.Parameter, value: str) -> str:
        settings_of(ctx).where = value
        return value

    return click.argument(name, type=PATH, callback=remember)


def json_options(command: F) -> F:
    """Add ``--json`` and ``--jsonl``; the command gets ``form``: text, json or jsonl."""

    def choose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            if ctx.params.get("form", "text") not in ("text", param.name):
                raise click.UsageError("--json and --jsonl exclude each other.", ctx)
            ctx.params["form"] = param.name
        ctx.params.setdefault("form", "text")

    for name, text in (
        ("jsonl", "Print one JSON document per line."),
        ("json", "Print one JSON document."),
    ):
        option = click.option(
            f"--{name}", is_flag=True, expose_value=False, callback=choose, help=text
        )
        command = option(command)
    return command
