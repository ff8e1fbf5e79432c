"""Where a cluster is, from what a user gave: addresses of members, text or the path of a socket.

Left out: looking names up, and connecting.
"""

from __future__ import annotations

import os
import tomllib
from typing import NamedTuple
from uuid import UUID

from ...affinity.errors import NotFoundError, UsageError
from ..system.layout import CLUSTER_FILE_NAME

TCP = "tidelog://"
UNIX = "tidelog+unix://"
_FORMS = (
    "Give `tidelog://HOST:PORT,HOST:PORT`, `tidelog+unix:///PATH`, or the directory of a test "
    "cluster."
)


class ClusterPlace(NamedTuple):
    """A cluster as users name it."""

    shown: str
    addresses: tuple[str, ...]
    cluster: bytes = b""
    """Its id, if that is known: members of others are not spoken to."""


def place_of_cluster(where: str | os.PathLike[str]) -> ClusterPlace:
    """Return the addresses of a cluster; ``UsageError`` for what cannot name one."""
    given = os.fspath(where) if isinstance(where, os.PathLike) else where
    if not isinstance(given, str):
        raise UsageError(f"a cluster is named by text, not by {given!r}", hint=_FORMS)
    if not given:
        raise UsageError("the name of the cluster is empty", hint=_FORMS)
    if given.startswith(UNIX):
        return ClusterPlace(given, (_checked(given.removeprefix(UNIX)),))
    if given.startswith(TCP):
        parts = given.removeprefix(TCP).rstrip("/").split(",")
        return ClusterPlace(given, tuple(_checked(part.strip()) for part in parts))
    if "://" in given:
        raise UsageError(f"{given!r} is not the address of a cluster", hint=_FORMS)
    return _in_directory(given)


def is_path(address: str) -> bool:
    """Tell whether an address is the path of a Unix socket."""
    return address.startswith("/")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of an address of TCP."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if is_path(address) or (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        return address
    raise UsageError(f"{address!r} is not the address of a member", hint=_FORMS)


def _in_directory(directory: str) -> ClusterPlace:
    path = os.path.join(directory, CLUSTER_FILE_NAME)
    try:
        with open(path, "rb") as file:
            fields = tomllib.load(file)
        addresses = tuple(_checked(member["address"]) for member in fields["members"])
        cluster = UUID(fields["cluster"]).bytes
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"there is no cluster at {directory}: no {path}", hint=_FORMS) from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} does not tell where members are: {error}", hint=_FORMS) from None
    if not addresses:
        raise UsageError(f"{path} has no members", hint=_FORMS)
    return ClusterPlace(os.path.abspath(directory), addresses, cluster)
