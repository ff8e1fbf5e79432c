"""Copies that lie elsewhere: on file systems that PyArrow knows by a URI, or that keep no locks.

What nobody writes any more, such as a hot copy, is copied into a private folder of this machine
before it is read, once for all tasks there, and read like any other.  The folder has a name that
follows from the place and from names, sizes and times of its files, so a task on another machine
makes the same one.

Invariants:

- A folder under its name is whole: it gets that when all of it was copied, and nothing of it has
  changed meanwhile.
- Whatever has a URI is never taken for a path.

Left out: stores that somebody writes, which stay on a local disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...affinity.errors import NotFoundError, SnapshotExpiredError, UnsupportedError, UsageError
from ...engine.files import manifest as manifests
from ...engine.system.disk import RealDisk
from ...engine.system.layout import LOCK_NAME, MANIFEST_NAME, READERS_NAME, STAGING_NAME
from ...engine.system.production import production
from .private import is_name, make_folder, new_file

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

KEPT_SECONDS = 24 * 3600
"""How long a copy stays that nobody has asked for."""

_CHUNK = 4 << 20
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*):/")
_SECRET = re.compile(r"[^/]*://[^/]*:[^/]*@")
_LEFT_OUT = (LOCK_NAME, READERS_NAME, STAGING_NAME)

Listing = list[tuple[str, int, int]]
"""Name below a place, size and time of each file."""


def place_of_option(text: str) -> str:
    """Return a path as it is named from everywhere: absolute, or the URI that it is."""
    text = text.removeprefix("file:")
    if _SCHEME.match(text):
        return text.rstrip("/")
    return os.path.abspath(re.sub("^/+", "/", text))


def local_path(text: str) -> str:
    """Return the absolute path of something on this machine; ``UsageError`` for a URI."""
    place = place_of_option(text)
    if is_remote(place):
        raise UsageError(
            f"{place} is a URI, and a local path is needed here",
            hint="Copies and archives are read by a URI, and archives and exports written there.",
        )
    return place


def is_remote(place: str) -> bool:
    """Tell whether a place is a URI, and not a path."""
    return _SCHEME.match(place) is not None


def file_system(uri: str) -> tuple[FileSystem, str]:
    """Return the file system of a URI, and the path there; ``UsageError`` if there is none."""
    if _SECRET.match(uri):
        raise UsageError(
            "a URI has a password, which would be seen in errors and in the column node",
            hint="Let PyArrow find it, such as in AWS_SECRET_ACCESS_KEY or ~/.aws/credentials.",
        )
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        found: tuple[FileSystem, str] = FileSystem.from_uri(uri)
    except (ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"{uri} is on no file system that can be used here: {error}",
            hint="PyArrow has to know its scheme, and what that needs has to be set up: see "
            "`pyarrow.fs.FileSystem.from_uri`.",
        ) from None
    return found


def at_hand(place: str) -> str:
    """Return where to read what is at a place: there, or in a copy on this machine.

    Raises ``UnsupportedError`` for a store that may be written, and ``NotFoundError``.
    """
    if is_remote(place):
        fs, path = file_system(place)
    elif RealDisk().network_file_system(place) is not None and os.path.isfile(
        os.path.join(place, MANIFEST_NAME)
    ):
        from pyarrow.fs import LocalFileSystem

        fs, path = LocalFileSystem(), place
    else:
        return place
    listing = _listing(fs, path, place)
    name = hashlib.sha256(repr((place, listing)).encode()).hexdigest()[:32]
    folder = os.path.join(_own_folder(), name)
    if not os.path.isdir(folder):
        _fetch(fs, path, place, listing, folder)
    os.utime(folder)
    _sweep(keep=folder)
    return folder


def send(folder: str, names: Sequence[str], place: str) -> None:
    """Copy files of a folder to a URI, in this order; each is there as a whole or not at all."""
    fs, path = file_system(place)
    for name in names:
        target = f"{path}/{name}"
        fs.create_dir(os.path.dirname(target), recursive=True)
        with open(os.path.join(folder, name), "rb") as source, fs.open_output_stream(target) as to:
            shutil.copyfileobj(source, to, _CHUNK)


def fetch_one(place: str, name: str, folder: str) -> None:
    """Copy one file from a URI into a folder."""
    fs, path = file_system(place)
    _copy(fs, f"{path}/{name}", os.path.join(folder, name))


def names_at(place: str) -> list[str]:
    """Return the names of the files at a URI; none if there is nothing."""
    fs, path = file_system(place)
    return [name for name, _, _ in _files(fs, path)]


def _files(fs: FileSystem, path: str) -> Listing:
    from pyarrow.fs import FileSelector, FileType

    found: list[Any] = fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    start = path.rstrip("/") + "/"
    return sorted(
        (info.path.removeprefix(start), info.size, info.mtime_ns or 0)
        for info in found
        if info.type == FileType.File
    )


def _listing(fs: FileSystem, path: str, place: str) -> Listing:
    try:
        found = _files(fs, path)
    except OSError as error:
        raise NotFoundError(f"{place} cannot be listed: {error}", hint="Check the URI.") from error
    if not found:
        raise NotFoundError(f"there is nothing at {place}", hint="Check the URI.")
    for name, _, _ in found:
        if not all(map(is_name, name.split("/"))):
            raise UnsupportedError(
                f"{place} has a file that is called {name!r}", hint="Name a folder without it."
            )
    if any(name == MANIFEST_NAME for name, _, _ in found):
        with fs.open_input_stream(f"{path.rstrip('/')}/{MANIFEST_NAME}") as source:
            copied = manifests.decode(source.read()).copied
    else:
        copied = True
    if not copied:
        raise UnsupportedError(
            f"{place} is a store, and no hot copy of one: it may be written while it is read, and "
            "is not on a local disk",
            hint="Make a hot copy of the store (`tidelog db backup STORE DIR`), put it there, and "
            "read that.",
        )
    return [one for one in found if one[0].split("/")[0] not in _LEFT_OUT]


def _own_folder() -> str:
    """Return a folder of this user, which nobody else can write."""
    path = os.path.join(tempfile.gettempdir(), f"tidelog-{os.getuid()}")
    make_folder(path)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnsupportedError(
            f"{path} is not a folder that only its owner can use",
            hint="Remove it, or set TMPDIR to a folder of your own.",
        )
    return path


def _fetch(fs: FileSystem, path: str, place: str, listing: Listing, folder: str) -> None:
    """Copy all files into a folder."""
    making = f"{folder}.{production().new_id().hex()}"
    try:
        for name, size, _ in listing:
            make_folder(os.path.dirname(os.path.join(making, name)))
            if _copy(fs, f"{path.rstrip('/')}/{name}", os.path.join(making, name)) != size:
                raise _changed(place)
        if _listing(fs, path, place) != listing:
            raise _changed(place)
        try:
            os.rename(making, folder)
        except OSError:
            if not os.path.isdir(folder):  # else another task was faster
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _copy(fs: FileSystem, path: str, target: str) -> int:
    """Copy a file to this machine; return its size."""
    with fs.open_input_stream(path) as source, new_file(target) as to:
        shutil.copyfileobj(source, to, _CHUNK)
        return to.tell()


def _changed(place: str) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{place} was changed while it was copied to this machine",
        hint="Read copies that nobody writes.",
    )


def _sweep(keep: str) -> None:
    """Remove copies that nobody has asked for in a day."""
    oldest = production().clock() / 1e6 - KEPT_SECONDS
    with os.scandir(os.path.dirname(keep)) as entries:
        for entry in entries:
            if entry.path != keep and entry.stat(follow_symlinks=False).st_mtime < oldest:
                shutil.rmtree(entry.path, ignore_errors=True)
