"""``cluster.toml``: who the members of a cluster on this machine are, and where.

    cluster = "6f9619ff-..."
    partitions = 64

    [[members]]
    name = "n1"
    id = "1b671a64-..."
    address = "127.0.0.1:7400"
    directory = "n1"
    pid = 4711

A member that came later, by `tidelog cluster join`, has ``joined = true``, and ``voter = true`` if
it holds no data.  Those without began the cluster together.  One that was declared lost has
``lost = true``, one that has left the baseline ``out = true``.  A cluster whose members enter only
when they are asked to has ``auto_join = false``, one of which a member was started ever
``begun = true``.

A directory is that of a member, within that of the file.  ``pid`` is 0 unless the member was
started and has not been ended by a command; whether it runs is for the operating system to tell.

Invariants:

- The file is replaced whole.
- What is read is what was written, or a ``ClusterError`` that names the field.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from ...affinity.errors import ClusterError, NotFoundError, UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...affinity.rows import REPLICAS_MAX
from ...engine.agreement.identity import member_id
from ...engine.system.layout import CLUSTER_FILE_NAME, CONFIG_LOG_NAME
from ..server.members import check_member_name, parsed_address

NEW_FILE_NAME = "cluster.tmp"
ELSEWHERE = "tidelog://"
"""What the place of a cluster begins with that is named by addresses of its members."""
_ADDRESS = re.compile(r"[\w+.-]+:/.*|[^/]+:\d+")
"""What is meant as an address rather than as a directory: a URL, or a host with a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMember:
    """A member; ``directory`` is within that of the cluster, "" for one that runs elsewhere."""

    name: str
    id: UUID
    address: str
    directory: str
    pid: int = 0
    joined: bool = False
    """Whether it came when the cluster had begun."""
    voter: bool = False
    """Whether it came to vote, without data."""
    lost: bool = False
    """Whether its disk was declared lost: it never runs again."""
    out: bool = False
    """Whether it has left the baseline: it holds nothing, and the others do without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A cluster on this machine."""

    cluster: UUID
    partitions: int
    members: tuple[LocalMember, ...]
    backups: int = 0
    """How many copies each partition has beside its first one, when the cluster begins."""
    min_in_sync: int = 1
    """How many of them have to be there for a partition to be written."""
    auto_join: bool = True
    """Whether who has joined enters the baseline by itself."""
    begun: bool = False
    """Whether any member was started ever, so that no store is made anew."""

    @property
    def founders(self) -> tuple[LocalMember, ...]:
        """The members that began the cluster together."""
        return tuple(member for member in self.members if not member.joined)

    @property
    def left(self) -> tuple[LocalMember, ...]:
        """The members that were not declared lost."""
        return tuple(member for member in self.members if not member.lost)

    @property
    def was_rescued(self) -> bool:
        """Whether its members are of an older cluster, of which others may have been members."""
        return any(one.id != member_id(self.cluster, one.name) for one in self.founders)

    def member(self, name: str) -> LocalMember:
        """Return the member of that name."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise NotFoundError(f"there is no member {name!r}", hint=f"The members are {names}.")

    def without(self, name: str) -> LocalCluster:
        """Return the same with a member that is lost."""
        members = (replace(m, lost=True, pid=0) if m.name == name else m for m in self.members)
        return replace(self, members=tuple(members))

    def with_out(self, name: str, out: bool) -> LocalCluster:
        """Return the same with a member that has left, or that may enter again."""
        members = (replace(m, out=out) if m.name == name else m for m in self.members)
        return replace(self, members=tuple(members))

    def with_pid(self, name: str, pid: int) -> LocalCluster:
        """Return the same with another process of a member."""
        members = (replace(m, pid=pid) if m.name == name else m for m in self.members)
        return replace(self, members=tuple(members), begun=self.begun or pid != 0)


def toml_of(cluster: LocalCluster) -> str:
    """Return the text of the file."""
    lines = [f'cluster = "{cluster.cluster}"', f"partitions = {cluster.partitions}"]
    if cluster.backups:
        lines.append(f"backups = {cluster.backups}")
    if cluster.min_in_sync > 1:
        lines.append(f"min_in_sync = {cluster.min_in_sync}")
    if not cluster.auto_join:
        lines.append("auto_join = false")
    if cluster.begun:
        lines.append("begun = true")
    for member in cluster.members:
        lines += [
            "",
            "[[members]]",
            f'name = "{member.name}"',
            f'id = "{member.id}"',
            f'address = "{member.address}"',
            f'directory = "{member.directory}"',
            f"pid = {member.pid}",
        ]
        told = ("joined", "voter", "lost", "out")
        lines += [f"{name} = true" for name in told if getattr(member, name)]
    return "\n".join([*lines, ""])


def cluster_of_toml(text: str) -> LocalCluster:
    """Return what the text of a file says; ``ClusterError`` if it cannot be right."""
    try:
        fields = tomllib.loads(text)
        rows = [dict(row) for row in fields["members"]]
        members = tuple(_member_of(row) for row in rows)
        found = LocalCluster(
            cluster=UUID(_typed(str, fields, "cluster")),
            partitions=_typed(int, fields, "partitions"),
            members=members,
            backups=_typed(int, {"backups": 0, **fields}, "backups"),
            min_in_sync=_typed(int, {"min_in_sync": 1, **fields}, "min_in_sync"),
            auto_join=_typed(bool, {"auto_join": True, **fields}, "auto_join"),
            begun=_typed(bool, {"begun": any(one.pid for one in members), **fields}, "begun"),
        )
    except KeyError as error:
        raise _broken(f"it has no field {error.args[0]!r}") from None
    except (TypeError, ValueError, UsageError) as error:
        raise _broken(str(error)) from None
    if not members or len({member.name for member in members}) != len(members):
        raise _broken("it names no member, or one twice")
    if not found.founders:
        raise _broken("none of its members began the cluster")
    if not 1 <= found.partitions <= PARTITIONS_MAX:
        raise _broken(f"{found.partitions} is not a number of partitions")
    # One that was rescued keeps as many as there were, for members that join.
    if not 0 <= found.backups < (REPLICAS_MAX if found.was_rescued else len(found.founders)):
        raise _broken(
            f"{found.backups} is not a number of backups for {len(found.founders)} members"
        )
    if not 1 <= found.min_in_sync <= found.backups + 1:
        raise _broken(f"{found.min_in_sync} is not a number of copies that can be there")
    return found


def _member_of(row: dict[str, Any]) -> LocalMember:
    name = check_member_name(_typed(str, row, "name"))
    address = _typed(str, row, "address")
    parsed_address(address)
    return LocalMember(
        name=name,
        id=UUID(_typed(str, row, "id")),
        address=address,
        directory=check_member_name(_typed(str, row, "directory")),
        pid=_typed(int, row, "pid"),
        joined=_typed(bool, {"joined": False, **row}, "joined"),
        voter=_typed(bool, {"voter": False, **row}, "voter"),
        lost=_typed(bool, {"lost": False, **row}, "lost"),
        out=_typed(bool, {"out": False, **row}, "out"),
    )


def _typed(kind: Callable[..., Any], fields: dict[str, Any], name: str) -> Any:
    value = fields[name]
    if type(value) is not kind:
        raise TypeError(f"{name!r} is {value!r}, which is not {kind.__name__}")
    return value


def _broken(why: str) -> ClusterError:
    return ClusterError(
        f"{CLUSTER_FILE_NAME} cannot be right: {why}",
        hint="Correct the file; or remove the directory, with all data in it, and begin anew.",
    )


def check_is_here(folder: str) -> None:
    """Raise ``UsageError`` for addresses where a directory of this machine is meant."""
    if folder.startswith(ELSEWHERE):
        raise UsageError(
            f"{folder} is not a directory: this command starts or ends processes of this machine",
            hint="Start and end members of other machines there: `tidelog server run`.",
        )


def start_text(folder: str, name: str) -> str:
    """Return the command that starts a member, for a sentence; elsewhere it is for its machine."""
    if folder.startswith(ELSEWHERE):
        return f"`tidelog server run DIR` on the machine of {name}, with its directory"
    return f"`tidelog cluster start {shlex.quote(folder)} {name}`"


def read_cluster(folder: str) -> LocalCluster:
    """Return what the file in a directory says."""
    check_is_here(folder)
    try:
        with open(os.path.join(folder, CLUSTER_FILE_NAME), "rb") as file:
            text = file.read().decode()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no {CLUSTER_FILE_NAME} in {folder}", hint=_other_place(folder)
        ) from None
    except UnicodeDecodeError:
        raise _broken("it is not text") from None
    return cluster_of_toml(text)


def _other_place(folder: str) -> str:
    """Return what to name instead of a place that has no cluster."""
    if os.path.exists(os.path.join(folder, CONFIG_LOG_NAME)):
        return (
            "It is that of one member: name the one above it, or of a member that runs its "
            f"address, `{ELSEWHERE}HOST:PORT`."
        )
    if not os.path.exists(folder) and _ADDRESS.fullmatch(folder):
        return (
            "A cluster of this machine is named by its directory, and any by addresses of members "
            f"that run: `{ELSEWHERE}HOST:PORT`, with commas between them."
        )
    return (
        "Name another one, or make a cluster there: `tidelog cluster up --dir "
        f"{shlex.quote(folder)}`."
    )


def write_cluster(folder: str, cluster: LocalCluster) -> None:
    """Replace the file in a directory."""
    beside = os.path.join(folder, NEW_FILE_NAME)
    with open(beside, "w", encoding="utf-8") as file:
        file.write(toml_of(cluster))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, os.path.join(folder, CLUSTER_FILE_NAME))
