"""Brings a cluster on this machine up and down, and asks it how it is.

    up      describe (cluster.toml) -> make each member -> start its process -> wait for those that
            are ending, and start them again -> wait until served
    down    SIGTERM to all -> wait -> SIGKILL to whoever is left

Invariants:

- ``cluster.toml`` comes first and says all that a member is made of, so that a command that was
  interrupted is gone on with by the next one.
- One command at a time changes a cluster: it holds the lock of the directory.
- If a start fails, the processes that it has started have ended; their data and logs stay.

Left out: one process (``processes``), one question (``questions``), what answers mean
(``standing``, ``shares``), and what follows (``blocks``).
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from ...affinity.errors import (
    ClusterError,
    NotEnoughMembersError,
    NotFoundError,
    TidelogError,
    UsageError,
)
from ...engine.agreement.identity import member_id
from ...engine.files.manifest import read as read_manifest_file
from ...engine.system.environment import address_text
from ...engine.system.layout import CLUSTER_FILE_NAME, MANIFEST_NAME, SERVER_LOG_NAME
from ...engine.system.production import production
from ...wal.files import ReadOnlyDirectory
from ..server.members import identified, parsed_address
from ..shell.exits import NotServedError, RefusedError
from ..shell.terminal import tell_beside
from .blocks import blocks_of, names_text
from .cluster_file import (
    ELSEWHERE,
    NEW_FILE_NAME,
    LocalCluster,
    LocalMember,
    read_cluster,
    write_cluster,
)
from .processes import MemberProcess, end_of_log, pid_of, process_of, start_process
from .questions import is_unreached, talking
from .shares import shares_of
from .standing import MemberAnswer, Picture, held_of, picture_of, status_of
from .tables import blocks_text

HOST = "127.0.0.1"
LOCK_NAME = "cluster.lock"
PORTS_TRIED = 1000
PAUSE_S = 0.05
MOVE_S_MAX = 20.0
"""Seconds in which a primary has to hand a partition over."""
DECIDE_S_MAX = 20.0
"""Seconds in which a member has something decided."""
ANSWER_S_MAX = 2.0
"""Seconds for one answer."""
CAUGHT_UP_S_MAX = 20.0
"""Seconds in which a copy that was away for a short while has caught up."""
UP_S_MAX = 60.0
"""Seconds until everything is served."""
WAIT_TOLD_S = 2.0
"""Seconds after which a command that waits says for what."""
DOWN_S_MAX = 30.0
"""Seconds for members to end in order."""
KILLED_S_MAX = 10.0

PID_ELSEWHERE = -1
"""The process of a member of another machine, of which nothing is known here."""
_LOG_HINT = f"The end of its log is shown above; all of it is in {SERVER_LOG_NAME} of the member."

TellUser = Callable[[str], None]


@contextmanager
def changing(folder: str) -> Iterator[None]:
    """Hold the lock of the cluster in a directory; one that runs elsewhere has none.

    Its file has the pid of who holds it, or of who has held it last.
    """
    if folder.startswith(ELSEWHERE):
        yield
        return
    path = Path(folder, LOCK_NAME)
    try:
        lock = production().disk.lock(str(path))
    except BlockingIOError:
        raise RefusedError(
            f"another command is at work on this cluster{_holder_of(path)}",
            hint="Wait for its end.",
        ) from None
    try:
        with suppress(OSError):  # a full disk keeps nobody from starting a member
            path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder_of(path: Path) -> str:
    """Return who holds a lock by what its file says; empty unless that is a process that is there.

    Until who has just taken it has written that, the file names who had it before.
    """
    try:
        with path.open("rb") as file:
            pid = file.read(20).strip().decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return f": process {pid}" if pid.isdigit() and os.path.exists(f"/proc/{pid}") else ""


# ------------------------------------------------------------------ a new one


def prepare_folder(folder: str) -> None:
    """Make the directory of a cluster; ``RefusedError`` for one that has something else in it."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a directory", hint="Name one, or none that is there.")
    os.makedirs(folder, exist_ok=True)
    names = set(os.listdir(folder)) - {LOCK_NAME, NEW_FILE_NAME}
    if names and CLUSTER_FILE_NAME not in names:
        raise RefusedError(
            f"{folder} has no {CLUSTER_FILE_NAME}, and is not empty: "
            f"{', '.join(sorted(names)[:3])}",
            hint="Name a directory that is empty, or not there yet.",
        )


def check_copies(folder: str, count: int, backups: int, min_in_sync: int) -> None:
    """Raise ``UsageError`` if a new cluster in a directory cannot have so many copies."""
    if os.path.exists(os.path.join(folder, CLUSTER_FILE_NAME)):
        return
    if backups >= count:
        has = f"{count} members have" if count > 1 else "one member has"
        raise UsageError(
            f"{has} {count - 1} backup{'s' * (count != 2)} of a partition at most, not {backups}",
            hint=f"Give --backups {count - 1}, or -n {backups + 1}. How many there are is said "
            "when a cluster begins, for good: one that is to have more members later begins with "
            "enough for its backups.",
        )
    if min_in_sync > backups + 1:
        raise UsageError(
            f"{min_in_sync} copies in sync cannot be had with {backups} backups",
            hint=f"Give at most {backups + 1}, or more backups.",
        )


def check_ports(folder: str, count: int, base_port: int) -> None:
    """Raise ``UsageError`` if a new cluster in a directory has too few ports from one on."""
    if not os.path.exists(os.path.join(folder, CLUSTER_FILE_NAME)):
        free_ports(base_port, count)


def check_base_port(cluster: LocalCluster, base_port: int | None) -> None:
    """Raise ``UsageError`` if a cluster that is there cannot have begun with a base port."""
    first = min(parsed_address(member.address)[1] for member in cluster.founders)
    if base_port is not None and not base_port <= first < base_port + PORTS_TRIED:
        raise UsageError(
            f"the cluster that is there has ports from {first} on, and keeps them, not from "
            f"{base_port} on",
            hint="Leave the option out, or name another directory.",
        )


def described(
    folder: str,
    count: int,
    partitions: int,
    base_port: int,
    backups: int = 0,
    min_in_sync: int = 1,
    auto_join: bool = True,
) -> LocalCluster:
    """Return the cluster in a directory; a new one, which is written down, if there is none."""
    if os.path.exists(os.path.join(folder, CLUSTER_FILE_NAME)):
        return read_cluster(folder)
    cluster = uuid4()
    members = []
    for number, port in enumerate(free_ports(base_port, count), 1):
        name = f"n{number}"
        members.append(
            LocalMember(
                name=name,
                id=member_id(cluster, name),
                address=address_text((HOST, port)),
                directory=name,
            )
        )
    new = LocalCluster(
        cluster=cluster,
        partitions=partitions,
        members=tuple(members),
        backups=backups,
        min_in_sync=min_in_sync,
        auto_join=auto_join,
    )
    write_cluster(folder, new)
    return new


def free_ports(first: int, count: int) -> list[int]:
    """Return so many ports on loopback that nobody listens at, the first one if it is free."""
    found: list[int] = []
    for port in range(first, min(first + PORTS_TRIED, 1 << 16)):
        if not _can_listen(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise UsageError(
        f"{HOST} has fewer than {count} free ports from {first} on",
        hint="Give another --base-port.",
    )


def _can_listen(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True


def make_members(folder: str, cluster: LocalCluster, names: Iterable[str]) -> None:
    """Make the stores of all who begin, or see that those are there who are to be started.

    Once the cluster has begun none is made: the others refuse a new disk, and a majority of new
    disks would be an empty cluster of the same id, beside what is left of this one.  So
    ``RefusedError`` if one was removed since.  Also if one runs whose directory was removed: it
    would be found as the process of the new one.
    """
    from ...engine.node.member_files import init_member

    if _has_begun(folder, cluster):
        _check_there(folder, cluster, names)
        return
    addresses = {member.name: member.address for member in cluster.founders}
    for member in cluster.founders:
        directory = os.path.join(folder, member.directory)
        if not _is_made(folder, member):
            check_ended(member.name, directory)
            init_member(
                production(),
                os.path.abspath(directory),
                cluster=cluster.cluster,
                member=member.id,
                members=identified(cluster.cluster, addresses),
                partitions=cluster.partitions,
                backups=cluster.backups,
                min_in_sync=cluster.min_in_sync,
                auto_join=cluster.auto_join,
            )


def check_made(folder: str, cluster: LocalCluster, name: str) -> None:
    """Raise ``RefusedError`` unless the store of a member is there, and all that begin are made.

    Once one is started none is made any more, so who begin are made together.
    """
    if _has_begun(folder, cluster):
        _check_there(folder, cluster, [name])
    elif missing := [one.name for one in cluster.founders if not _is_made(folder, one)]:
        raise RefusedError(
            f"{', '.join(missing)}: not made yet, and all who begin a cluster are made together",
            hint=f"Go on with `tidelog cluster up --dir {shlex.quote(folder)}`.",
        )


def made_members(folder: str, cluster: LocalCluster, tell: TellUser) -> list[str]:
    """Return the names of all members but those without a store that others do without.

    Those are who has left, and whose joining was interrupted before it began.
    """
    names = []
    for member in cluster.left:
        if member.out and not _is_made(folder, member):
            check_ended(member.name, os.path.join(folder, member.directory))
            tell(f"{member.name} has left, and its directory is gone: the others are started")
        elif member.joined and not _is_made(folder, member):
            place = shlex.quote(folder)
            tell(
                f"{member.name} has no store: `tidelog cluster join {place} {member.name}`; if it "
                f"had one, `tidelog cluster lose {place} {member.name}`"
            )
        else:
            names.append(member.name)
    return names


def _is_made(folder: str, member: LocalMember) -> bool:
    return os.path.exists(os.path.join(folder, member.directory, MANIFEST_NAME))


def _has_begun(folder: str, cluster: LocalCluster) -> bool:
    """Tell whether a member has run ever, by its store or by what the file knows."""
    return cluster.begun or any(
        member.joined
        or member.lost
        or member.out
        or _was_started(os.path.join(folder, member.directory))
        for member in cluster.members
    )


def _was_started(directory: str) -> bool:
    """Tell whether a member has run ever; one whose manifest is damaged has."""
    try:
        return read_manifest_file(ReadOnlyDirectory(directory)).boot > 0
    except (OSError, NotFoundError):
        return False
    except TidelogError:
        return True


def _check_there(folder: str, cluster: LocalCluster, names: Iterable[str]) -> None:
    for name in names:
        member = cluster.member(name)
        if member.joined or _is_made(folder, member):
            continue  # who joins makes its own
        directory = os.path.join(folder, member.directory)
        check_ended(name, directory)
        place = shlex.quote(folder)
        gone = f"the disk of {name} is gone: {directory} is not there, or has no manifest"
        if not any(_is_made(folder, one) for one in cluster.members):
            file = os.path.join(folder, CLUSTER_FILE_NAME)
            raise RefusedError(
                f"{gone}, and so are those of all other members: nothing is left of the cluster",
                hint="Bring the directories back. To begin a new cluster, which has nothing of "
                f"this one, name another directory, or remove {file}.",
            )
        raise RefusedError(
            f"{gone}; a new one in its place would not be the same member",
            hint="Bring that directory back. Without it start each of the others by itself, with "
            "`tidelog cluster start`: what they have copies of is served, if they are a majority, "
            f"and they can declare this one lost: `tidelog cluster lose {place} {name}`, "
            f"then `tidelog cluster join {place}`. If most disks are gone for good, take all down, "
            f"and make a cluster of those that are left: `tidelog cluster rescue {place}`.",
        )


def check_ended(name: str, directory: str) -> None:
    """Raise ``RefusedError`` if a member runs whose directory was removed."""
    if pid := pid_of(directory):
        raise RefusedError(
            f"process {pid} runs {name} still, whose directory {directory} was removed",
            hint=f"End it: `kill {pid}`. Before you remove a cluster, take it down.",
        )


def _check_own(folder: str, cluster: LocalCluster, name: str) -> None:
    """Raise ``RefusedError`` if the directory of a member has the store of another one.

    What is asked for by the one's name would be done to the other one.
    """
    member = cluster.member(name)
    directory = os.path.join(folder, member.directory)
    try:
        held = read_manifest_file(ReadOnlyDirectory(directory)).member
    except (OSError, TidelogError):
        return  # there is none yet; or the member tells what is wrong with it
    if held is not None and UUID(held) != member.id:
        names = [one.name for one in cluster.members if one.id == UUID(held)]
        raise RefusedError(
            f"{directory} has the store of {names_text(names) if names else 'another member'}, "
            f"and not that of {name}",
            hint="Give each directory of a member its own name again: each has a "
            f"{MANIFEST_NAME} with the id of its member, and {CLUSTER_FILE_NAME} tells which "
            "directory that is to have.",
        )


# ------------------------------------------------------------------ up


def start_members(folder: str, names: Iterable[str], tell: TellUser) -> bool:
    """Start members that do not run, and wait until what they shall serve is served.

    Who is about to end is waited for, and started again.  Without a majority nothing is served:
    then it is enough that they answer, and False is returned.  Those that were started end again
    if that fails, or is interrupted; but not who is only late, and of a cluster that ran before:
    it may be needed for a majority by now.
    """
    cluster, names = read_cluster(folder), list(names)
    for name in names:
        _check_own(folder, cluster, name)
    started: list[str] = []
    deadline = time.monotonic() + UP_S_MAX

    def start(name: str) -> None:
        nonlocal cluster
        member = cluster.member(name)
        directory = os.path.join(folder, member.directory)
        _check_free(name, member.address)
        if member.joined:
            os.makedirs(directory, exist_ok=True)
        pid = start_process(directory, _joining(cluster, member))
        started.append(name)
        write_cluster(folder, cluster := cluster.with_pid(name, pid))

    try:
        there = []
        for name in names:
            if pid_of(os.path.join(folder, cluster.member(name).directory)):
                there.append(name)
            else:
                start(name)
        for name in _ended_of(folder, cluster, there, deadline, tell):
            start(name)
        return _wait_until_served(folder, cluster, started, deadline, tell)
    except BaseException as error:
        stay = _taken_in(look(folder, cluster), started) if type(error) is NotServedError else []
        for name in stay:
            tell(f"{name} stays: the cluster has taken it in")
        _end_all(folder, cluster, [one for one in started if one not in stay], KILLED_S_MAX, tell)
        raise


def _taken_in(picture: Picture, started: Sequence[str]) -> list[str]:
    """Return which of those that were started are members of a cluster that ran before."""
    answers = ((name, picture.answers[name].status) for name in started)
    taken = [name for name, status in answers if status and picture.has_joined(status)]
    return taken if len(started) < len(picture.cluster.left) else []


def _ended_of(
    folder: str, cluster: LocalCluster, names: Sequence[str], deadline: float, tell: TellUser
) -> Iterator[str]:
    """Yield each of some members that have a process as it ends, until all others stay.

    ``NotServedError`` if one neither ends in time nor answers as a member of the cluster.
    """
    unsure = [*names]
    while unsure:
        picture = look(folder, cluster)
        for name in [*unsure]:
            if not picture.answers[name].pid:
                tell(f"{name} has ended meanwhile, and is started again")
                yield name
            elif picture.stays(name):
                tell(f"{name} runs already")
            else:
                continue
            unsure.remove(name)
        if unsure and time.monotonic() > deadline:
            raise _not_served(folder, cluster, picture, unsure)
        if unsure:
            time.sleep(PAUSE_S)


def _joining(cluster: LocalCluster, member: LocalMember) -> list[str]:
    """Return with which options a member is run that came later than the cluster."""
    if not member.joined:
        return []
    seeds = ",".join(other.address for other in cluster.members if other != member)
    options = ["--join", seeds, "--listen", member.address, "--name", member.name]
    return [*options, "--voter"] if member.voter else options


def _check_free(name: str, address: str) -> None:
    """Raise ``RefusedError`` if somebody else answers, or may, where a member is to listen."""
    host, port = parsed_address(address)
    with suppress(OSError), socket.create_connection((host, port), ANSWER_S_MAX):
        raise RefusedError(
            f"{name} cannot be started: somebody else listens at {address}",
            hint="End that process. Of a cluster and a copy of its directory only one can run.",
        )
    if host == HOST and not _can_listen(port):
        raise RefusedError(
            f"{name} cannot be started: somebody else has the port of {address}",
            hint="End that process: a member keeps its address. A new cluster, in another "
            "directory, takes other ports: `tidelog cluster up --base-port`.",
        )


def _wait_until_served(
    folder: str, cluster: LocalCluster, started: list[str], deadline: float, tell: TellUser
) -> bool:
    told_at = time.monotonic() + WAIT_TOLD_S
    while True:
        picture = look(folder, cluster)
        if ended := [name for name in started if not picture.answers[name].pid]:
            show_logs(folder, cluster, ended)
            raise ClusterError(
                f"{', '.join(ended)} ended instead of coming up",
                hint=_LOG_HINT
                + " To go on without, start each of the others by itself: `tidelog cluster start`."
                * (len(started) > len(ended)),
            )
        running = [name for name, answer in picture.answers.items() if answer.pid]
        voting = picture.voting
        there = len({*voting}.intersection(running))
        if there <= len(voting) // 2:
            if all(picture.answers[name].status for name in started):
                tell(f"{there} of {len(voting)} members that vote run: nothing is served yet")
                return False
        elif _is_up(picture, started):
            return True
        if time.monotonic() > deadline or time.monotonic() > told_at:
            late = [name for name in running if not _serves(picture, name)]
            if time.monotonic() > deadline:
                raise _not_served(folder, cluster, picture, late)
            told_at = math.inf
            tell(f"{_served(picture)}: waiting {UP_S_MAX:.0f} s at most for {names_text(late)}")
        time.sleep(PAUSE_S)


def wait_for_copies(folder: str, tell: TellUser) -> None:
    """Wait until all copies have caught up, for so long as that mostly takes; tell who has not."""
    cluster = read_cluster(folder)
    deadline = time.monotonic() + CAUGHT_UP_S_MAX
    told_at = time.monotonic() + WAIT_TOLD_S
    while _catches_up(picture := look(folder, cluster)) and time.monotonic() <= deadline:
        if time.monotonic() > told_at:
            told_at = math.inf
            most = f"{CAUGHT_UP_S_MAX:.0f} s at most"
            tell(f"{_served(picture)}: waiting {most} for copies that catch up")
        time.sleep(PAUSE_S)
    _tell_of_copies(picture, folder, tell)


def _served(picture: Picture) -> str:
    return f"{picture.partitions_served} of {picture.cluster.partitions} partitions are served"


def _not_served(
    folder: str, cluster: LocalCluster, picture: Picture, late: list[str]
) -> NotServedError:
    """Return the error for members that are not ready in time; show what they have printed."""
    show_logs(folder, cluster, late)
    for line in blocks_text(blocks_of(picture, shares_of(picture), folder)):
        tell_beside(line)
    return NotServedError(
        f"after {UP_S_MAX:.0f} s {picture.partitions_served} of {cluster.partitions} "
        f"partitions are served; not ready: {', '.join(late)}",
        hint=_LOG_HINT,
    )


def _is_up(picture: Picture, started: Iterable[str]) -> bool:
    """Tell whether all is as it stays: everything served, or what those who were started have.

    Somebody else who does not answer, with a process or without, is not waited for.
    """
    if {*picture.away()}.issubset(started):
        return picture.whole_but_for_losses
    return all(_serves(picture, name) for name in started)


def _serves(picture: Picture, name: str) -> bool:
    status = picture.answers[name].status
    return status is not None and picture.has_joined(status) and status.serves_all


def _catches_up(picture: Picture) -> bool:
    """Tell whether a member runs that is to have a copy, and has none that counts; or that is to
    serve a partition, and does not yet."""
    shares = [share for share in shares_of(picture) if not share.lost]
    awaited = {name for share in shares for name in share.missing}
    awaited |= {share.wanted[0] for share in shares if share.primary != share.wanted[0]}
    return any(picture.state_of(name) == "up" for name in awaited)


def _tell_of_copies(picture: Picture, folder: str, tell: TellUser) -> None:
    """Say what a user who sees everything served would not notice: copies that are missing."""
    shares, lost = shares_of(picture), picture.newest.lost if picture.newest else ()
    if lost:
        tell(
            f"{len(lost)} of {len(shares)} partitions are lost, and not served: "
            f"`tidelog cluster losses {shlex.quote(folder)}` tells which"
        )
    fewer = [share for share in shares if share.missing and share.partition not in lost]
    if fewer:
        tell(
            f"{len(fewer)} of {len(shares)} partitions have fewer copies than they should: "
            f"`tidelog cluster status {shlex.quote(folder)}` tells which"
        )


def show_logs(folder: str, cluster: LocalCluster, names: list[str]) -> None:
    """Show the end of what some members have printed."""
    for name in names:
        directory = os.path.join(folder, cluster.member(name).directory)
        tell_beside(f"{name}: the end of {os.path.join(directory, SERVER_LOG_NAME)}:")
        for line in end_of_log(directory) or ["(empty)"]:
            tell_beside(f"  {line}")


# ------------------------------------------------------------------ down


def kill_member(folder: str, name: str, tell: TellUser) -> None:
    """End a member as by ``kill -9``."""
    cluster = read_cluster(folder)
    with process_of(os.path.join(folder, cluster.member(name).directory)) as process:
        if process is None:
            tell(f"{name} does not run")
        else:
            process.send(signal.SIGKILL)
            process.ended(KILLED_S_MAX)
            tell(f"killed {name}, process {process.pid}")
    write_cluster(folder, cluster.with_pid(name, 0))
    _tell_of_majority(folder, cluster, tell)


def end_members(folder: str, tell: TellUser, name: str | None = None) -> None:
    """Let all members end in order, or one, and kill whoever does not."""
    cluster = read_cluster(folder)
    left = cluster.members if name is None else [cluster.member(name)]
    ended = _end_all(folder, cluster, [member.name for member in left], DOWN_S_MAX, tell)
    none_ran = "no member runs" if name is None else f"{name} does not run"
    tell(f"ended {', '.join(ended)}" if ended else none_ran)
    if name is not None:
        _tell_of_majority(folder, cluster, tell)


def _tell_of_majority(folder: str, cluster: LocalCluster, tell: TellUser) -> None:
    """Say so if too few members are left to serve anything."""
    voting = look(folder, cluster).voting
    there = sum(runs(folder, member) for member in cluster.left if member.name in voting)
    if there <= len(voting) // 2:
        tell(f"{there} of {len(voting)} members that vote run: nothing is served until more do")


def _end_all(
    folder: str, cluster: LocalCluster, names: list[str], seconds: float, tell: TellUser
) -> list[str]:
    """End members, and return the names of those who ran."""
    with ExitStack() as held:
        found: dict[str, MemberProcess] = {}
        for name in names:
            directory = os.path.join(folder, cluster.member(name).directory)
            if process := held.enter_context(process_of(directory)):
                found[name] = process
                process.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        told_at = min(time.monotonic() + WAIT_TOLD_S, deadline)
        for name, process in found.items():
            if not process.ended(max(0.0, told_at - time.monotonic())) and told_at < deadline:
                told_at = deadline
                tell(f"waiting for {name} to end, {seconds:.0f} s at most")
            if not process.ended(max(0.0, deadline - time.monotonic())):
                process.send(signal.SIGKILL)
                process.ended(KILLED_S_MAX)
                tell(f"{name} did not end within {seconds:.0f} s and was killed")
    for name in names:
        cluster = cluster.with_pid(name, 0)
    write_cluster(folder, cluster)
    return list(found)


# ------------------------------------------------------------------ how it is


def move_partition(cluster: LocalCluster, partition: int, source: str, target: str) -> None:
    """Have the primary of a partition hand it over; ``ClusterError`` if it does not."""
    primary = cluster.member(source)
    try:
        address = parsed_address(primary.address)
        with talking(address, cluster.cluster.bytes, MOVE_S_MAX) as member_says:
            member_says.ask("move", partition, cluster.member(target).id.bytes)
    except OSError as error:
        raise ClusterError(
            f"partition {partition} was not moved from {source} to {target}: "
            f"{error.strerror or error}",
            hint="`tidelog cluster partition` tells what is in the way; then try again.",
        ) from None


def runs(folder: str, member: LocalMember) -> bool:
    """Tell whether a member runs, or may: of one elsewhere only it can tell."""
    return not member.directory or pid_of(os.path.join(folder, member.directory)) > 0


def ask_somebody(
    folder: str,
    cluster: LocalCluster,
    said: str,
    operation: str,
    *arguments: object,
    others: Sequence[LocalMember] | None = None,
    hint: str | None = None,
) -> Any:
    """Return the first answer of a member that runs, of some or of all.

    ``ClusterError`` with what is ``said`` of it, and why each of them has refused;
    ``NotEnoughMembersError`` if nobody has heard the question.
    """
    reasons: dict[str, list[str]] = {}
    heard = False
    for one in cluster.left if others is None else others:
        if not runs(folder, one):
            continue
        try:
            address = parsed_address(one.address)
            with talking(address, cluster.cluster.bytes, DECIDE_S_MAX) as member_says:
                return member_says.ask(operation, *arguments)
        except OSError as error:
            reasons.setdefault(error.strerror or str(error), []).append(one.name)
            heard = heard or not is_unreached(error)
    kind = ClusterError if heard else NotEnoughMembersError
    told = [f"{names_text(names)}: {reason}" for reason, names in reasons.items()]
    raise kind(
        f"{said}: {'; '.join(told) or 'no member runs'}",
        hint=(hint if heard else None)
        or f"`tidelog cluster status {shlex.quote(folder)}` tells what is in the way.",
    )


def look(
    folder: str, cluster: LocalCluster, partition: int | None = None, exchanges: int = 0
) -> Picture:
    """Ask all members at once how they are, and what they know.

    That is of a partition, if one is named, and of so many exchanges.
    """

    def answer_of(member: LocalMember) -> MemberAnswer:
        pid = pid_of(os.path.join(folder, member.directory)) if member.directory else PID_ELSEWHERE
        if not pid:
            manifest = os.path.join(folder, member.directory, MANIFEST_NAME)
            return MemberAnswer(pid=0, disk_gone=not os.path.exists(manifest))
        story = seen = problem = None
        try:
            address = parsed_address(member.address)
            with talking(address, cluster.cluster.bytes, ANSWER_S_MAX) as member_says:
                told = member_says.ask("status")
                status = status_of(member_says.view, told)
                held = held_of(member_says.ask_copies())
                try:
                    if partition is not None and held:
                        story = member_says.ask("partition", partition)
                    if exchanges:
                        seen = member_says.ask("exchanges", exchanges)
                except ConnectionRefusedError as error:  # it has just heard of decisions
                    problem = str(error)
        except ConnectionRefusedError as error:
            pid = 0 if pid == PID_ELSEWHERE else pid
            return MemberAnswer(pid=pid, problem=error.strerror or str(error))
        except OSError as error:
            return MemberAnswer(pid=pid, problem=error.strerror or str(error))
        if status.member != member.id:
            return MemberAnswer(pid=pid, problem=f"member {status.member} answers there")
        return MemberAnswer(
            pid=pid, status=status, held=held, story=story, exchanges=seen, problem=problem
        )

    members = cluster.left
    with ThreadPoolExecutor(len(members)) as pool:
        answers = list(pool.map(answer_of, members))
    return picture_of(cluster, dict(zip([m.name for m in members], answers, strict=True)))
