"""Where a store lies: whether it may lie there, who has it locked, and whose files these are.

Left out: how a store is made there (``creation``), and how it is opened (``opening``).
"""

from __future__ import annotations

import os
import re

from ...affinity.errors import (
    AlreadyOpenError,
    CorruptDataError,
    DiskError,
    FormatVersionError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ..files import manifest as manifests
from ..files.manifest import Manifest
from ..system.disk_errors import translated_disk
from ..system.environment import Disk, Environment, LockHandle
from ..system.layout import (
    CLUSTER_FILE_NAME,
    DATA_FILE,
    DATA_NAME,
    LOCK_NAME,
    STORE_FILES,
    STORE_FOLDERS,
)
from ..system.lmdb_file import open_here

IN_MEMORY = ":memory:"
"""How the paths of stores without files begin, which lead nowhere."""

_URI = re.compile(r"[A-Za-z][\w+.-]*://")


def place_of(path: str | os.PathLike[str], what: str = "the path of a store") -> str:
    """Return the absolute path of a store; ``UsageError`` for what cannot be one of a directory."""
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise UsageError(
            f"{what} is a str, or a path object of one, not {type(given).__name__}",
            hint="Make a str of bytes with `os.fsdecode`.",
        )
    if not given:
        raise UsageError(f"{what} is empty", hint="Name its directory; `.` is the current one.")
    if "\0" in given:
        raise UsageError(
            f"{what}, {given!r}, has a null character",
            hint="Name a directory without one.",
        )
    if given.startswith(IN_MEMORY):
        raise UsageError(
            f"{what} is that of a directory, and a directory cannot be in memory: {given!r}",
            hint="`tidelog.memory()` makes a store without files; share its handle.",
        )
    if _URI.match(given):
        raise UsageError(
            f"{what} is one of a directory on a local disk, and {given} is a URI",
            hint="Connect to a cluster with `tidelog.connect`; a store is in a directory."
            if given.startswith(("tidelog:", "tidelog+unix:"))
            else "Name a directory; the views of Spark read copies that have a URI.",
        )
    return os.path.abspath(given)


def check_place(environment: Environment, path: str) -> None:
    """Raise if a store cannot keep its promises: no directory, or a network file system."""
    kind = environment.disk.kind(path)
    if kind not in (None, "directory"):
        raise UsageError(f"{path} is not a directory", hint="Name the directory of a store.")
    network = environment.disk.network_file_system(path)
    if network is not None:
        raise UnsupportedError(
            f"{path} is on a network file system ({network}), which does not keep locks and syncs",
            hint="Put the store on a local disk.",
        )


def make_place(environment: Environment, path: str) -> None:
    """Make the directory of a new store, in one that is there already."""
    try:
        with translated_disk(f"making {path}"):
            environment.disk.make_directory(path)
    except DiskError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotFoundError(
                f"there is no directory {os.path.dirname(path)} to make a store in",
                hint="Check the path, or make that directory first.",
            ) from None
        raise


def take_lock(environment: Environment, path: str) -> LockHandle:
    """Lock the store for writing, or raise ``AlreadyOpenError`` naming the process that has it."""
    try:
        return environment.disk.lock(os.path.join(path, LOCK_NAME))
    except BlockingIOError:
        raise _already_open(environment, path) from None


def _already_open(environment: Environment, path: str) -> AlreadyOpenError:
    """Return the error for a store that is open for writing here or elsewhere."""
    pid = owner_of(environment, path)
    if pid == environment.pid():
        return open_here(path, pid)
    owner = f"process {pid}" if pid else "another process"
    return AlreadyOpenError(
        f"{path} is open for writing in {owner}",
        path=path,
        pid=pid,
        hint="End that process, or open with `read_only=True`, which works beside it; beside a "
        "cluster's member only `tidelog.connect` does.",
    )


def owner_of(environment: Environment, path: str) -> int | None:
    """Return the process that the lock file names."""
    try:
        file = environment.disk.directory(path, read_only=True).open_read(LOCK_NAME)
    except OSError:
        return None
    try:
        text = file.read(0, 20).split()
    finally:
        file.close()
    return int(text[0]) if text and text[0].isdigit() else None


def cluster_directory(path: str) -> UsageError:
    """Return the error for the directory of a whole cluster, taken for that of a store."""
    return UsageError(
        f"{path} is the directory of a cluster, not of a store",
        hint="Connect to it with `tidelog.connect`; see `tidelog cluster --help`.",
    )


def read_manifest(environment: Environment, path: str) -> Manifest:
    """Return the manifest of the store at ``path``; ``NotFoundError`` if there is no store.

    ``UsageError`` for the directory of a whole cluster.
    """
    try:
        directory = environment.disk.directory(path, read_only=True)
        return manifests.read(directory)
    except (FileNotFoundError, NotADirectoryError):
        if environment.disk.kind(os.path.join(path, CLUSTER_FILE_NAME)) is not None:
            raise cluster_directory(path) from None
        if holds_data(environment.disk, path):
            raise no_manifest(path) from None
        taken = strangers_at(environment.disk, path)
        raise NotFoundError(
            f"there is no store at {path}" + f", but {', '.join(taken[:3])}" * bool(taken),
            hint="Name the directory of a store: one is made in an empty directory only."
            if taken
            else "`tidelog.open(path)` makes one.",
        ) from None
    except (CorruptDataError, FormatVersionError) as error:
        error.args = (f"{path}: {error}",)
        raise


def strangers_at(disk: Disk, path: str) -> list[str]:
    """Return what is in a directory and not of a store, sorted; nothing without a directory."""
    if disk.kind(path) != "directory":
        return []
    names = disk.directory(path, read_only=True).names()
    return sorted(set(names).difference(STORE_FOLDERS) - STORE_FILES)


def holds_data(disk: Disk, path: str) -> bool:
    """Tell whether a directory has the data file of a store."""
    return disk.kind(os.path.join(path, DATA_NAME, DATA_FILE)) is not None


def no_manifest(path: str) -> CorruptDataError:
    """Return the error for a directory that lacks nothing of a store but its manifest."""
    return CorruptDataError(
        f"{path} holds data but no manifest",
        hint="Restore the manifest from a backup; delete a copy that never finished.",
    )
