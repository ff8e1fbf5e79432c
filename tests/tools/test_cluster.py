"""``tidelog cluster`` without members: its file, its questions, its processes, its tables."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tidelog.affinity.errors import (
    ClusterError,
    NotEnoughMembersError,
    NotFoundError,
    UsageError,
)
from tidelog.engine.agreement.identity import member_id
from tidelog.engine.files.manifest import decode, encode
from tidelog.engine.net.frames import KNOWN, FrameDecoder, Message, frame, pack_message
from tidelog.engine.net.handshake import Introduction, Refusal
from tidelog.engine.net.kinds import BY_NAME
from tidelog.engine.system.environment import address_text
from tidelog.engine.system.layout import CLUSTER_FILE_NAME, MANIFEST_NAME, SERVER_LOG_NAME
from tidelog.tools.cluster import cli as commands, elsewhere, growing, running, showing
from tidelog.tools.cluster.baseline import advice, changes_text, is_settled, seats_of
from tidelog.tools.cluster.blocks import Blocker, blocks_of, partitions_text
from tidelog.tools.cluster.cluster_file import (
    LocalCluster,
    LocalMember,
    cluster_of_toml,
    read_cluster,
    toml_of,
    write_cluster,
)
from tidelog.tools.cluster.growing import newcomer_of
from tidelog.tools.cluster.losing import check_reset
from tidelog.tools.cluster.processes import command_line, end_of_log, pid_of, process_of
from tidelog.tools.cluster.questions import PAGE, talking
from tidelog.tools.cluster.rescuing import rescue_cluster
from tidelog.tools.cluster.running import (
    LOCK_NAME,
    ask_somebody,
    check_made,
    described,
    end_members,
    kill_member,
    look,
    made_members,
    make_members,
    start_members,
    wait_for_copies,
)
from tidelog.tools.cluster.shares import Share, shares_of
from tidelog.tools.cluster.standing import (
    MemberAnswer,
    Picture,
    held_of,
    picture_of,
    status_of,
)
from tidelog.tools.cluster.stories import copy_text, story_of
from tidelog.tools.cluster.tables import node_rows, partition_rows, summary_of, summary_text
from tidelog.tools.server.members import (
    identified,
    named_members,
    parsed_address,
)
from tidelog.tools.shell.exits import NotServedError, RefusedError

CLUSTER = UUID(int=9)
N1, N2, N3 = (member_id(CLUSTER, name) for name in ("n1", "n2", "n3"))

THREE = LocalCluster(
    cluster=CLUSTER,
    partitions=4,
    members=tuple(
        LocalMember(
            name=f"n{number}",
            id=member_id(CLUSTER, f"n{number}"),
            address=f"127.0.0.1:{7399 + number}",
            directory=f"n{number}",
        )
        for number in (1, 2, 3)
    ),
)
ONE_RUNS = "1 of 3 members that vote run: nothing is served until more do"


# ------------------------------------------------------------------ names and addresses


def test_members_are_the_same_in_whatever_order_they_are_named() -> None:
    one = named_members("n2=127.0.0.1:7401, n1=127.0.0.1:7400")
    assert list(one.items()) == [("n1", "127.0.0.1:7400"), ("n2", "127.0.0.1:7401")]
    assert identified(CLUSTER, one) == [(N1, "127.0.0.1:7400"), (N2, "127.0.0.1:7401")]
    assert identified(UUID(int=8), one) != identified(CLUSTER, one)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n1", "not NAME=HOST:PORT"),
        ("n1=127.0.0.1", "not HOST:PORT"),
        ("n1=::1:7400", "not HOST:PORT"),
        ("n1=host:0", "not a port"),
        ("n1=host:65536", "not a port"),
        ("n1=host:http", "not a port"),
        ("../n1=host:7400", "not a name of a member"),
        ("=host:7400", "not a name of a member"),
        ("n1=a:7400,n1=b:7400", "named twice"),
        ("n1=a:7400,n2=a:7400", "two members have the address a:7400"),
        ("n1=a:7400,", "not NAME=HOST:PORT"),
    ],
)
def test_members_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        named_members(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["127.0.0.1:7400", "localhost:1", "[::1]:65535"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert address_text(parsed_address(text)) == text


def test_a_socket_by_a_path_is_written_as_the_path() -> None:
    assert address_text(("/run/a socket", 0)) == "/run/a socket"


# ------------------------------------------------------------------ cluster.toml


def test_the_file_says_what_was_written(tmp_path: Path) -> None:
    write_cluster(str(tmp_path), THREE.with_pid("n2", 4711))
    again = read_cluster(str(tmp_path))
    assert again == THREE.with_pid("n2", 4711)
    assert [member.pid for member in again.members] == [0, 4711, 0]
    assert os.listdir(tmp_path) == [CLUSTER_FILE_NAME]


def test_a_file_with_a_process_is_of_a_cluster_that_has_begun() -> None:
    """One of an earlier version does not say so; its members were made anew where disks lacked."""
    written = toml_of(THREE.with_pid("n2", 4711))
    assert "begun = true" in written
    assert cluster_of_toml(written.replace("begun = true", "")).begun
    assert not cluster_of_toml(toml_of(THREE)).begun


def test_a_write_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(str(tmp_path), THREE)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_cluster(str(tmp_path), THREE.with_pid("n1", 1))
    assert read_cluster(str(tmp_path)) == THREE


def test_a_directory_without_the_file_is_not_found(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFoundError, match=r"no cluster\.toml") as caught:
            read_cluster(str(place))
        assert "cluster up" in caught.value.hint


@pytest.mark.parametrize(
    "place",
    ["http://127.0.0.1:8300", "127.0.0.1:8300", "a:1,b:2", "[::1]:1", "tidelog+unix:///run/s"],
)
def test_what_looks_like_an_address_is_told_what_a_place_looks_like(place: str) -> None:
    # The advice was to make a cluster in a directory of that name.
    with pytest.raises(NotFoundError) as caught:
        read_cluster(place)
    assert "cluster up" not in caught.value.hint
    assert "is named by its directory" in caught.value.hint
    assert "`tidelog://HOST:PORT`" in caught.value.hint


def test_a_directory_may_be_named_like_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:1").mkdir()
    with pytest.raises(NotFoundError) as caught:
        read_cluster("a:1")
    assert "`tidelog cluster up --dir a:1`" in caught.value.hint


GOOD = toml_of(THREE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no field 'members'"),
        ("cluster = [", "Invalid value|Unclosed|unterminated"),
        (GOOD.replace("partitions = 4\n", ""), "no field 'partitions'"),
        (GOOD.replace("partitions = 4", 'partitions = "4"'), "'partitions' is '4'"),
        (GOOD.replace("partitions = 4", "partitions = 0"), "0 is not a number of partitions"),
        (GOOD.replace(str(CLUSTER), "mine"), "UUID"),
        (GOOD.replace('name = "n2"', 'name = "n1"'), "names no member, or one twice"),
        (GOOD.replace('directory = "n2"', 'directory = "../n2"'), "not a name"),
        (GOOD.replace("127.0.0.1:7401", "7401"), "not HOST:PORT"),
        (GOOD.replace("pid = 0", "pid = true"), "'pid' is True"),
        (GOOD.partition("[[")[0] + "members = []\n", "names no member"),
        (GOOD.partition("[[")[0] + "members = 7\n", "not iterable"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / CLUSTER_FILE_NAME).write_text(text)
    with pytest.raises(ClusterError, match=problem) as caught:
        read_cluster(str(tmp_path))
    assert CLUSTER_FILE_NAME in str(caught.value)
    assert caught.value.hint


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / CLUSTER_FILE_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match="not text"):
        read_cluster(str(tmp_path))


def test_a_member_that_is_not_there_is_named_with_those_who_are() -> None:
    with pytest.raises(NotFoundError, match="'n4'") as caught:
        cluster_of_toml(GOOD).member("n4")
    assert "n1, n2, n3" in caught.value.hint


def joined(name: str, number: int, *, voter: bool = False) -> LocalMember:
    """A member that came later."""
    return LocalMember(
        name=name,
        id=member_id(CLUSTER, name),
        address=f"127.0.0.1:{7399 + number}",
        directory=name,
        joined=True,
        voter=voter,
    )


GROWN = replace(THREE, members=(*THREE.members, joined("n4", 4), joined("v1", 5, voter=True)))


def test_the_file_says_who_came_later() -> None:
    assert not {"joined", "voter", "auto_join"} & set(re.findall(r"\w+", toml_of(THREE)))
    careful = replace(GROWN, auto_join=False)
    assert cluster_of_toml(toml_of(careful)) == careful
    assert [member.name for member in careful.founders] == ["n1", "n2", "n3"]
    for text, problem in (
        (toml_of(replace(GROWN, members=GROWN.members[3:])), "none of its members began"),
        (toml_of(replace(GROWN, backups=3)), "3 is not a number of backups for 3 members"),
        (toml_of(GROWN).replace("voter = true", "voter = 1"), "'voter' is 1"),
    ):
        with pytest.raises(ClusterError, match=problem):
            cluster_of_toml(text)


def test_a_cluster_that_was_rescued_keeps_more_backups_than_it_has_other_members() -> None:
    text = toml_of(replace(THREE, members=THREE.members[:1], backups=2))
    with pytest.raises(ClusterError, match="2 is not a number of backups for 1 members"):
        cluster_of_toml(text)
    assert cluster_of_toml(text.replace(str(CLUSTER), str(UUID(int=10)))).backups == 2


def test_who_came_later_is_not_made_with_those_who_begin(tmp_path: Path) -> None:
    make_members(str(tmp_path), THREE, ["n1", "n2", "n3"])
    make_members(str(tmp_path), GROWN, ["n1", "n2", "n3", "n4", "v1"])
    assert sorted(os.listdir(tmp_path)) == ["n1", "n2", "n3"]
    told: list[str] = []
    assert made_members(str(tmp_path), GROWN, told.append) == ["n1", "n2", "n3"]
    assert [line.split(":")[0] for line in told] == ["n4 has no store", "v1 has no store"]


# ------------------------------------------------------------------ processes


@contextmanager
def sleeper(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these arguments that does nothing until it is ended."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_a_member_is_found_by_its_directory_and_ends(tmp_path: Path) -> None:
    mine, other = str(tmp_path / "n1"), str(tmp_path / "n2")
    with sleeper(*command_line(mine)[3:]) as process:
        assert pid_of(mine) == process.pid
        assert pid_of(other) == 0
        with process_of(mine) as found:
            assert found is not None
            assert not found.ended(0)
            found.send(signal.SIGKILL)
            assert found.ended(60)
            found.send(signal.SIGKILL)  # nothing, and nobody else
        assert pid_of(mine) == 0


def test_a_process_that_only_names_the_directory_is_not_the_member(tmp_path: Path) -> None:
    directory = str(tmp_path / "n1")
    for arguments in (
        ["server", "init", directory],
        ["server", "run", directory + "1"],
        ["run", directory],
    ):
        with sleeper(*arguments):
            assert pid_of(directory) == 0


def test_a_member_is_found_by_another_way_to_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "n1"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    with sleeper(*command_line(str(directory))[3:]) as process:
        assert pid_of(str(tmp_path / "link")) == process.pid


def test_a_member_whose_directory_was_removed_is_not_taken_for_the_new_one(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    # `up` found it by its command line, and waited a minute for a member of another cluster.
    place = tmp_path / "c"
    with sleeper(*command_line(str(place / "n1"))[3:]) as process:
        done = run("cluster", "up", "-n", 1, "--dir", place)
        assert done.exit_code == 7
        assert f"process {process.pid} runs n1 still, whose directory" in done.stderr
        assert f"kill {process.pid}" in done.stderr


def test_a_process_is_found_whatever_it_was_started_with(tmp_path: Path) -> None:
    place = str(tmp_path / "n4")
    with sleeper(*command_line(place, ["--join", "127.0.0.1:7400"])[3:]) as process:
        assert pid_of(place) == process.pid
        assert pid_of(str(tmp_path / "n")) == 0


def test_who_is_about_to_end_is_waited_for_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was taken for one that runs, and was down a moment after the command had ended with 0.
    place, told, started = str(tmp_path), list[str](), list[str]()
    write_cluster(place, THREE)
    ending = ALL | {"n2": up(said(N2, [1], stopping=True))}
    silent, ended = (ALL | {"n2": MemberAnswer(pid=pid)} for pid in (17, 0))
    seen = iter([ending, silent, ended, ALL])

    def start(directory: str, options: object) -> int:
        started.append(directory)
        return 18

    monkeypatch.setattr(running, "pid_of", lambda _directory: 17)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(running, "look", lambda *_place: picture(**next(seen)))
    monkeypatch.setattr(running, "start_process", start)
    monkeypatch.setattr(running, "_check_free", lambda _name, _address: None)
    start_members(place, ["n1", "n2", "n3"], told.append)
    assert started == [str(tmp_path / "n2")]
    assert told == [
        "n1 runs already",
        "n3 runs already",
        "n2 has ended meanwhile, and is started again",
    ]
    assert read_cluster(place).member("n2").pid == 18


@pytest.mark.parametrize("is_up", [False, True])
def test_a_command_that_waits_for_two_seconds_says_once_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_up: bool
) -> None:
    # `start` took 11 s beside other work, and said nothing.
    place, told, now = str(tmp_path), list[tuple[float, str]](), [0.0]
    write_cluster(place, THREE)
    behind = ALL if is_up else ALL | {"n3": up(said(N3, [2], open=[False], leased=[False]))}

    def sleep(_seconds: float) -> None:
        now[0] += 0.5

    def tell(text: str) -> None:
        told.append((now[0], text))

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(running, "look", lambda *_at: picture(**(behind if now[0] < 4 else ALL)))
    monkeypatch.setattr(running, "_catches_up", lambda _picture: now[0] < 4)
    if is_up:
        wait_for_copies(place, tell)
    else:
        assert running._wait_until_served(place, THREE, ["n3"], 60.0, tell)
    awaited = (
        "4 of 4 partitions are served: waiting 20 s at most for copies that catch up"
        if is_up
        else "3 of 4 partitions are served: waiting 60 s at most for n3"
    )
    assert told == [(2.5, awaited)]


@pytest.mark.parametrize(
    ("left", "more"),
    [("n1 n3", []), ("n1", [ONE_RUNS])],
)
def test_who_does_not_end_is_waited_for_aloud_and_whether_too_few_are_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, more: list[str]
) -> None:
    # `stop` of a member that was frozen said nothing for 30 s, and nothing of the majority.
    place, told, now, sent = str(tmp_path), list[tuple[float, str]](), [0.0], list[int]()
    write_cluster(place, THREE)

    class Frozen:
        pid = 17

        def send(self, number: int) -> None:
            sent.append(number)

        def ended(self, seconds: float) -> bool:
            killed = signal.SIGKILL in sent
            now[0] += 0 if killed else seconds
            return killed

    monkeypatch.setattr(running, "process_of", lambda _directory: nullcontext(Frozen()))
    monkeypatch.setattr(running, "pid_of", lambda at: 17 * (os.path.basename(at) in left.split()))
    monkeypatch.setattr(running, "look", lambda *_place: picture(**ALL))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    end_members(place, lambda text: told.append((now[0], text)), "n2")
    assert sent == [signal.SIGTERM, signal.SIGKILL]
    assert told == [
        (2, "waiting for n2 to end, 30 s at most"),
        (30, "n2 did not end within 30 s and was killed"),
        (30, "ended n2"),
        *((30, text) for text in more),
    ]


@pytest.mark.parametrize(
    ("left", "more"),
    [("n1 n2 n3", []), ("n1 n2", [ONE_RUNS])],
)
def test_whether_too_few_are_left_behind_a_kill_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, more: list[str]
) -> None:
    place, running_now, told = str(tmp_path), left.split(), list[str]()
    write_cluster(place, THREE)

    class Process:
        pid = 17

        def send(self, number: int) -> None:
            assert number == signal.SIGKILL
            running_now.remove("n2")

        def ended(self, _seconds: float) -> bool:
            return True

    monkeypatch.setattr(running, "process_of", lambda _directory: nullcontext(Process()))
    monkeypatch.setattr(running, "pid_of", lambda at: 17 * (os.path.basename(at) in running_now))
    monkeypatch.setattr(running, "look", lambda *_place: picture(**ALL))
    kill_member(place, "n2", told.append)
    assert told == ["killed n2, process 17", *more]


def test_a_reason_that_several_members_give_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three members said the same of `baseline remove`, one behind the other.
    reasons = {7400: "1 member would stay", 7401: "it has ended", 7402: "1 member would stay"}

    def refusing(address: tuple[str, int], *_more: object) -> Any:
        raise ConnectionRefusedError(reasons[address[1]])

    monkeypatch.setattr(running, "runs", lambda *_member: True)
    monkeypatch.setattr(running, "talking", refusing)
    with pytest.raises(ClusterError) as refused:
        ask_somebody("a place", THREE, "n1 does not leave", "want", hint="Let another one join.")
    assert str(refused.value) == (
        "n1 does not leave: n1 and n3: 1 member would stay; n2: it has ended"
    )
    assert refused.value.hint == "Let another one join."


def test_who_runs_and_does_not_answer_in_time_is_not_taken_for_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    silent = ALL | {"n2": MemberAnswer(pid=17)}
    monkeypatch.setattr(running, "look", lambda *_place: picture(**silent))
    with pytest.raises(NotServedError, match="not ready: n2\n"):
        list(running._ended_of(str(tmp_path), THREE, ["n1", "n2"], 0.0, told.append))
    assert told == ["n1 runs already"]


def test_who_is_not_of_the_topology_any_more_is_about_to_end_unless_nothing_is_decided() -> None:
    gone = view(4, [0, 1, 2, 0], [1, 1, 1, 1], present="13")
    knows = up(said(N1, [0, 3], members=gone[1]), gone)
    assert picture(**ALL).stays("n2")
    assert not picture(**(ALL | {"n1": knows, "n2": up(said(N2, [1], decided=3))})).stays("n2")
    alone = {name: up(said(N2, [], members=gone[1], majority=False), gone) for name in ALL}
    assert picture(**alone).stays("n2")


def test_a_member_whose_port_somebody_has_is_not_started(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    # Nobody answers there: it was started, ended, and its log spoke of an option of `server run`.
    place = tmp_path / "c"
    place.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = address_text(taken.getsockname())
        [member] = described(str(place), 1, 4, 7400).members
        moved = replace(read_cluster(str(place)), members=(replace(member, address=address),))
        write_cluster(str(place), moved)
        done = run("cluster", "up", "--dir", place)
    assert done.exit_code == 7
    assert f"n1 cannot be started: somebody else has the port of {address}" in done.stderr
    assert "`tidelog cluster up --base-port`" in done.stderr
    assert not (place / "n1" / SERVER_LOG_NAME).exists()


def test_of_a_log_the_last_lines_are_shown(tmp_path: Path) -> None:
    assert end_of_log(str(tmp_path)) == []
    lines = [f"line {number} " + "x" * 100 for number in range(1000)]
    (tmp_path / SERVER_LOG_NAME).write_text("\n".join(lines) + "\n")
    assert end_of_log(str(tmp_path)) == lines[-12:]


# ------------------------------------------------------------------ what members say


def view(decided: int, primaries: list[int], epochs: list[int], present: str = "123") -> list[Any]:
    """A view of three members."""
    members = [
        [member.bytes, 1, str(number) in present, f"127.0.0.1:{7399 + number}"]
        for number, member in enumerate((N1, N2, N3), 1)
    ]
    return [decided, members, [], [], primaries, epochs]


def copies(primaries: list[int], epochs: list[int], boot: int = 1) -> dict[str, Any]:
    """Who holds partitions of one copy each."""
    ids = [(N1, N2, N3)[place].bytes for place in primaries]
    count = len(ids)
    return {
        "decided": 4,
        "partitions": list(range(count)),
        "rows": [[one] for one in ids],
        "goals": [[]] * count,
        "epochs": epochs,
        "authors": ids,
        "boots": [boot] * count,
        "sets": [[one] for one in ids],
        "set_boots": [[boot]] * count,
        "opened": [True] * count,
        "changed": [2] * count,
        "lwms": [7] * count,
        "ranges": [[]] * count,
        "hwms": [8] * count,
    }


def said(of: UUID, mine: list[int], **more: Any) -> dict[str, Any]:
    """The answer of a member that serves these partitions in epoch 1."""
    count = len(mine)
    return {
        "member": of.bytes,
        "boot": 1,
        "term": 1,
        "coordinator": N1.bytes,
        "majority": True,
        "decided": 4,
        "members": view(4, [], [])[1],
        "baseline": [N1.bytes, N2.bytes, N3.bytes],
        "placed": [N1.bytes, N2.bytes, N3.bytes],
        "voters": [],
        "wanted": [],
        "auto_join": True,
        "lost": [],
        "lost_members": [],
        "lease_us": 900_000,
        "partitions": mine,
        "epochs": [1] * count,
        "open": [True] * count,
        "leased": [True] * count,
        "blocked": [],
        "lagging": [],
        "log_failure": None,
        "data_failure": None,
        "timing": {"lease": 1.5, "drift": 0.1},
        "counts": {"clients": 2, "requests": 5, "commits": 1, "log_bytes": 4096},
    } | more


VIEW = view(4, [0, 1, 2, 0], [1, 1, 1, 1])


def picture(**answers: MemberAnswer) -> Picture:
    return picture_of(THREE, answers)


def up(answer: dict[str, Any], seen: list[Any] = VIEW) -> MemberAnswer:
    held = held_of([copies(seen[4], seen[5])])
    return MemberAnswer(pid=17, status=status_of(seen, answer), held=held)


def rows_of(found: Picture) -> list[dict[str, Any]]:
    return partition_rows(shares_of(found))


def blocks(found: Picture) -> list[Blocker]:
    return blocks_of(found, shares_of(found), "a place")


def summary(found: Picture) -> dict[str, Any]:
    return summary_of(found, shares_of(found), blocks(found))


ALL = {"n1": up(said(N1, [0, 3])), "n2": up(said(N2, [1])), "n3": up(said(N3, [2]))}


def test_a_cluster_that_serves_everything() -> None:
    whole = picture(**ALL)
    assert whole.whole
    assert summary(whole) == {
        "cluster": str(CLUSTER),
        "members": 3,
        "members_up": 3,
        "members_away": [],
        "baseline": ["n1", "n2", "n3"],
        "members_joining": [],
        "members_waiting": [],
        "members_leaving": [],
        "members_out": [],
        "members_lost": [],
        "partitions_moving": 0,
        "changes": None,
        "majority": True,
        "coordinator": "n1",
        "term": 1,
        "decided": 4,
        "partitions": 4,
        "partitions_served": 4,
        "partitions_waiting": 0,
        "partitions_taken_over": 0,
        "partitions_unavailable": 0,
        "backups": 0,
        "backups_wanted": 0,
        "sets_full": 4,
        "copies_lagging": 0,
        "timing": {"lease": 1.5, "drift": 0.1},
        "blocks": [],
    }
    rows = rows_of(whole)
    assert [row["state"] for row in rows] == ["served"] * 4
    assert [row["primary"] for row in rows] == ["n1", "n2", "n3", "n1"]
    assert [(row["lwm"], row["hwm"]) for row in rows] == [(7, 8)] * 4
    first, second, _ = node_rows(whole)
    assert (first["coordinator"], second["coordinator"]) == (True, False)
    assert (first["partitions"], first["served"], first["lease_ms"]) == (2, 2, 900)
    assert first["counts"]["requests"] == 5


def test_a_member_that_is_away_takes_partitions_of_one_copy_with_it() -> None:
    two = picture(**(ALL | {"n2": MemberAnswer(pid=0)}))
    assert not two.whole
    assert summary(two)["partitions_served"] == 3
    assert [row["state"] for row in rows_of(two)] == [
        "served", "unavailable", "served", "served"
    ]  # fmt: skip
    assert node_rows(two)[1]["state"] == "down"
    assert rows_of(two)[1]["open"] is None
    [block] = blocks(two)
    assert (block.kind, block.partitions, block.members) == ("unavailable", (1,), ("n2",))
    assert "the disk of n2" in block.text
    assert block.next == "start n2: `tidelog cluster start 'a place' n2`"


def test_a_member_that_runs_and_does_not_answer_is_silent() -> None:
    two = picture(**(ALL | {"n2": MemberAnswer(pid=5, problem="timed out")}))
    row = node_rows(two)[1]
    assert (row["state"], row["pid"], row["problem"]) == ("silent", 5, "timed out")
    [block] = blocks(two)
    assert "does not answer; `tidelog cluster kill 'a place' n2`" in block.next


def test_a_partition_without_a_lease_or_not_yet_open_waits() -> None:
    waiting = said(N1, [0, 3], open=[True, False], leased=[False, True])
    found = picture(**(ALL | {"n1": up(waiting)}))
    assert [row["state"] for row in rows_of(found)] == [
        "waiting", "served", "served", "opening"
    ]  # fmt: skip
    assert summary(found)["partitions_served"] == 2
    assert not found.whole


def test_a_member_that_has_not_joined_yet_keeps_a_cluster_from_being_whole() -> None:
    # Another member serves what it served; still the cluster knows nothing of this start of it.
    found = picture(**(ALL | {"n3": up(said(N3, [2], boot=2))}))
    assert found.partitions_served == 4
    assert not found.whole


def test_who_knows_the_most_decisions_is_right_about_who_serves() -> None:
    moved = view(5, [1, 1, 2, 0], [2, 1, 1, 1])
    newer = said(N2, [0, 1], decided=5, epochs=[2, 1], coordinator=None, open=[False, True])
    found = picture(**(ALL | {"n2": up(newer, moved)}))
    row = rows_of(found)[0]
    assert (row["primary"], row["epoch"], row["state"]) == ("n2", 2, "opening")
    assert summary(found)["coordinator"] is None


def test_a_primary_that_has_not_heard_of_its_new_epoch_is_about_to_open_it() -> None:
    moved = view(5, [1, 1, 2, 0], [2, 1, 1, 1])
    newer = said(N3, [2], decided=5)
    found = picture(**(ALL | {"n3": up(newer, moved)}))
    assert rows_of(found)[0]["state"] == "opening"
    [block] = [block for block in blocks(found) if block.kind == "takeover"]
    assert "taken over by n2, which has not heard of it yet" in block.text


def test_nobody_answers() -> None:
    none = picture(**dict.fromkeys(("n1", "n2", "n3"), MemberAnswer(pid=0)))
    assert summary(none)["members_up"] == 0
    assert summary(none)["decided"] is None
    assert rows_of(none) == []
    assert [row["state"] for row in node_rows(none)] == ["down"] * 3
    [block] = blocks(none)
    assert (block.text, block.next) == ("no member runs", "`tidelog cluster up --dir 'a place'`")
    coming = picture(**(dict.fromkeys(("n1", "n2"), MemberAnswer(pid=0)) | {"n3": SILENT}))
    assert blocks(coming)[0].text == "no member answers; of n3 there is a process"


SILENT = MemberAnswer(pid=5, problem="timed out")


def test_without_a_coordinator_it_is_told_whether_there_are_too_few_members() -> None:
    def alone(of: UUID, mine: list[int]) -> MemberAnswer:
        return up(said(of, mine, majority=False, leased=[False] * len(mine)))

    all_three = picture(n1=alone(N1, [0, 3]), n2=alone(N2, [1]), n3=alone(N3, [2]))
    [block] = blocks(all_three)
    assert block.text.startswith("no coordinator leads, though 3 of 3 members answer")
    assert summary(all_three)["coordinator"] is None, "n1 led last, and leads nobody"
    assert not any(row["coordinator"] for row in node_rows(all_three))
    led_last = picture(n1=MemberAnswer(pid=0), n2=alone(N2, [1]), n3=SILENT)
    assert not [block for block in blocks(led_last) if "which led" in block.text]
    one = picture(n1=alone(N1, [0, 3]), n2=MemberAnswer(pid=0), n3=SILENT)
    block = blocks(one)[0]
    assert block.text.startswith("n2 and n3 do not answer, and 2 of 3 members are needed")
    assert block.next == "start 1 of them: `tidelog cluster start 'a place' n2`"
    assert {row["state"] for row in rows_of(one)} == {"waiting", "unavailable"}


def test_right_behind_a_kill_nobody_is_said_to_take_over_if_too_few_are_left() -> None:
    # Who was left still took itself to have a majority: `status` told of a takeover to come.
    two_gone = picture(n1=ALL["n1"], n2=MemberAnswer(pid=0), n3=MemberAnswer(pid=0))
    assert not two_gone.majority
    assert blocks(two_gone)[0].text.startswith("n2 and n3 do not answer, and 2 of 3 members")
    assert not [block for block in blocks(two_gone) if block.kind in ("takeover", "coordinator")]
    hanging = picture(n1=ALL["n1"], n2=SILENT, n3=SILENT)
    assert hanging.majority, "they may only be slow to answer"
    assert picture(**(ALL | {"n2": MemberAnswer(pid=0)})).majority


def test_fewer_backups_than_were_asked_for_are_told_with_what_brings_them() -> None:
    fields = summary(picture_of(replace(THREE, backups=2), ALL))
    assert (fields["backups"], fields["backups_wanted"]) == (0, 2)
    assert summary_text(fields)["backups"] == "0, and 2 once there are members for them"
    assert summary_text(summary(picture(**ALL)))["backups"] == 0


def test_a_partition_that_is_open_without_a_lease_waits_for_a_coordinator() -> None:
    found = picture(**(ALL | {"n1": up(said(N1, [0, 3], leased=[True, False]))}))
    [block] = blocks(found)
    assert (block.kind, block.partitions, block.members) == ("lease", (3,), ("n1",))


def test_a_copy_is_in_the_way_only_if_it_stores_nothing_for_a_while() -> None:
    def lagging(us: int) -> list[Blocker]:
        said_so = said(N1, [0, 3], lagging=[[0, N2.bytes, 3, us], [3, N2.bytes, 1, 10]])
        return blocks(picture(**(ALL | {"n1": up(said_so)})))

    assert lagging(100_000) == []
    [block] = lagging(1_500_000)
    assert (block.kind, block.partitions, block.members) == ("lag", (0,), ("n2",))
    assert "n2 has not stored 3 items of 1 partition (0) of n1" in block.text
    assert "for 1.5 s" in block.text


def test_partitions_that_are_read_only_are_told_though_all_are_served() -> None:
    # Everything was said to be served, and nothing to block, while each write was refused.
    careful = replace(THREE, backups=2, min_in_sync=2)
    found = picture_of(careful, ALL)
    assert summary(found)["partitions_served"] == 4
    [block] = blocks(found)
    assert (block.kind, block.partitions) == ("few", (0, 1, 2, 3))
    assert block.text.startswith("4 partitions (0-3) are not written any more: fewer than 2 copies")
    assert "--min-in-sync" in block.text
    assert blocks(picture_of(replace(careful, min_in_sync=1), ALL)) == []


def test_whose_disk_is_needed_is_started_first() -> None:
    # The member to start for a majority was one that had no copy that counts.
    alone = up(said(N1, [], majority=False), view(4, [2, 2, 2, 2], [1, 1, 1, 1]))
    found = picture(n1=alone, n2=MemberAnswer(pid=0), n3=MemberAnswer(pid=0))
    majority, unavailable = blocks(found)
    assert majority.next == "start 1 of them: `tidelog cluster start 'a place' n3`"
    assert unavailable.members == ("n3",)


GONE = MemberAnswer(pid=0, disk_gone=True)
LOSE_N2 = (
    "the disk of n2 is gone: bring its directory back; if it is gone for good: "
    "`tidelog cluster lose 'a place' n2`"
)


def test_who_has_no_disk_is_not_to_be_started() -> None:
    # The advice was to start n2, which `tidelog cluster start` refused.
    alone = up(said(N1, [], majority=False), view(4, [1, 1, 1, 1], [1, 1, 1, 1]))
    majority, unavailable = blocks(picture(n1=alone, n2=GONE, n3=MemberAnswer(pid=0)))
    assert majority.next == f"start 1 of them: `tidelog cluster start 'a place' n3`; {LOSE_N2}"
    assert unavailable.next == "the disk of n2 is gone: bring its directory back", (
        "without a majority nobody can be declared lost"
    )
    most = blocks(picture(n1=alone, n2=GONE, n3=GONE))[0]
    assert most.next == (
        "the disks of n2 and n3 are gone: bring their directories back; if most disks are gone for "
        "good, take all down, and make a cluster of those that are left: "
        "`tidelog cluster rescue 'a place'`"
    )
    silent = blocks(picture(n1=alone, n2=GONE, n3=SILENT))[0]
    assert "start 1 of them: a process is there, and does not answer; " in silent.next
    assert "`tidelog cluster kill 'a place' n3`" in silent.next


def test_a_copy_whose_disk_is_gone_does_not_catch_up() -> None:
    pages = [copies([0, 0, 0, 0], [1] * 4) | {"rows": [[N1.bytes, N2.bytes, N3.bytes]] * 4}]
    n1 = MemberAnswer(pid=1, status=status_of(VIEW, said(N1, [0, 1, 2, 3])), held=held_of(pages))
    for more, first, second in (
        ({"n2": GONE, "n3": MemberAnswer(pid=0)}, LOSE_N2, "n3`: it catches up by itself"),
        ({"n2": GONE, "n3": GONE}, LOSE_N2, "`tidelog cluster lose 'a place' n3`"),
    ):
        found = blocks(picture(n1=n1, **more))
        n2, n3 = (block.next for block in found if block.kind == "copies")
        assert n2 == f"{first}, then `tidelog cluster join 'a place'`"
        assert second in n3


@pytest.mark.parametrize("cluster", [THREE, THREE.without("n3")])
def test_who_was_declared_lost_is_not_to_be_started(cluster: LocalCluster) -> None:
    """`status` told to start it while its part was on its way to others, and that is refused."""
    told = {"lost_members": [N3.bytes]}
    pages = [copies([0, 0, 0, 0], [1] * 4) | {"rows": [[N1.bytes, N3.bytes]] * 4}]
    n1 = up(said(N1, [0, 1, 2, 3], **told))
    found = picture_of(cluster, {"n1": replace(n1, held=held_of(pages)), "n2": n1})
    (lacking,) = blocks(found)
    assert (lacking.kind, lacking.members) == ("copies", ("n3",))
    assert lacking.text.endswith(": it was declared lost")
    assert lacking.next.startswith("nothing: others get copies of what was there")

    pages = [copies([1, 1, 1, 1], [1] * 4) | {"sets": [[N3.bytes, N2.bytes]] * 4}]
    pages[0]["set_boots"] = [[1, 1]] * 4
    alone = replace(up(said(N1, [], majority=False, **told)), held=held_of(pages))
    found = picture_of(cluster, {"n1": alone, "n2": MemberAnswer(pid=0)})
    majority, unavailable = blocks(found)
    assert majority.next == "start 1 of them: `tidelog cluster start 'a place' n2`"
    assert unavailable.next == "start n2: `tidelog cluster start 'a place' n2`"
    assert unavailable.members == ("n2",)


def test_members_without_a_store_are_told_apart_from_those_that_do_not_run(tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        (tmp_path / name).mkdir()
    (tmp_path / "n1" / MANIFEST_NAME).touch()
    answers = look(str(tmp_path), THREE).answers
    assert [one.disk_gone for one in answers.values()] == [False, True, True]


def test_who_is_to_serve_a_partition_and_is_away_does_not_serve_it_already(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A move to a member that had just been killed ended well, for it was the primary still.
    write_cluster(str(tmp_path), THREE)
    monkeypatch.setattr(
        showing, "look", lambda *_place: picture(**(ALL | {"n2": MemberAnswer(pid=0)}))
    )
    assert "n1 serves partition 0 already" in run("cluster", "move", tmp_path, 0, "n1").stderr
    done = run("cluster", "move", tmp_path, 1, "n2")
    assert done.exit_code == 6
    assert "does not serve it now: the partition is unavailable" in done.stderr
    assert "next:  start n2: `tidelog cluster start" in done.stderr


def test_a_disk_that_is_lost_is_not_made_anew(run: Callable[..., Any], tmp_path: Path) -> None:
    # Two of three new disks were an empty cluster of the same id, beside what was acknowledged.
    place = tmp_path / "c"
    place.mkdir()
    found = described(str(place), 3, 4, 7400)
    for name in ("n1", "n2", "n3"):
        make_members(str(place), found, [name])  # as behind a command that was interrupted
    manifest = place / "n1" / MANIFEST_NAME
    manifest.write_bytes(encode(replace(decode(manifest.read_bytes()), boot=1)))
    for name in ("n2", "n3"):
        shutil.rmtree(place / name)
    make_members(str(place), found, ["n1"])
    for command in (("start", place, "n2"), ("start", place, "n3"), ("up", "--dir", place)):
        done = run("cluster", *command)
        assert done.exit_code == 7
        assert "is gone" in done.stderr
        assert "Bring that directory back." in done.stderr
    manifest.write_bytes(b"damaged")
    assert run("cluster", "start", place, "n2").exit_code == 7
    assert sorted(os.listdir(place)) == sorted([CLUSTER_FILE_NAME, LOCK_NAME, "n1"])


def removed(where: Path, cluster: LocalCluster, *started: str) -> Path:
    """The directory of a cluster that has begun, of which only these directories are left."""
    where.mkdir()
    make_members(str(where), THREE, [])
    for name in started:
        shutil.copytree(where / "n1", where / f"{name}.new")
        manifest = where / f"{name}.new" / MANIFEST_NAME
        manifest.write_bytes(encode(replace(decode(manifest.read_bytes()), boot=1)))
    for name in ("n1", "n2", "n3"):
        shutil.rmtree(where / name)
    for name in started:
        (where / f"{name}.new").rename(where / name)
    write_cluster(str(where), cluster)
    return where


@pytest.mark.parametrize(
    ("cluster", "left"),
    [
        pytest.param(GROWN, ("n4",), id="a joined member has the data"),
        pytest.param(GROWN, (), id="a member has joined"),
        pytest.param(GROWN.without("n3"), ("n4",), id="a founder is lost"),
        pytest.param(THREE.without("n3"), (), id="the file knows of one that is lost"),
        pytest.param(THREE.with_out("n3", True), (), id="the file knows of one that has left"),
        pytest.param(
            THREE.with_pid("n2", 4711).with_pid("n2", 0), (), id="the file knows that one has run"
        ),
    ],
)
def test_no_founder_is_made_anew_once_a_cluster_has_begun(
    run: Callable[..., Any], tmp_path: Path, cluster: LocalCluster, left: tuple[str, ...]
) -> None:
    """Without directories of founders `up` made an empty second cluster beside joined members.

    What that one acknowledged was gone later.
    """
    place = removed(tmp_path / "c", cluster, *left)
    for command in (("up", "--dir", place), ("start", place, "n1")):
        done = run("cluster", *command)
        assert done.exit_code == 7, done.stderr
        assert "the disk of n1 is gone" in done.stderr
        told = " ".join(done.stderr.split())
        ways = [f"tidelog cluster {way} {place}" for way in ("lose", "join", "rescue")]
        if not left:
            ways = ["nothing is left of the cluster", f"or remove {place / CLUSTER_FILE_NAME}"]
        assert all(way in told for way in ways), told
    assert sorted(os.listdir(place)) == sorted([CLUSTER_FILE_NAME, LOCK_NAME, *left])


def test_one_that_is_started_makes_nobody_else(run: Callable[..., Any], tmp_path: Path) -> None:
    """`start` made all who begin; made one by one, the others would be refused later."""
    place = tmp_path / "c"
    place.mkdir()
    write_cluster(str(place), THREE)
    done = run("cluster", "start", place, "n1")
    assert (done.exit_code, "n1, n2, n3: not made yet" in done.stderr) == (7, True)
    assert f"`tidelog cluster up --dir {place}`" in done.stderr
    assert sorted(os.listdir(place)) == sorted([CLUSTER_FILE_NAME, LOCK_NAME])


def test_who_has_left_or_is_lost_does_not_keep_the_others_from_being_started(
    tmp_path: Path,
) -> None:
    """`up` was refused for ever once the directory of a member that had left was removed."""
    cluster = GROWN.without("n2").with_out("n1", True).with_out("v1", True)
    place = str(removed(tmp_path / "c", cluster, "n3", "n4"))
    assert cluster_of_toml(toml_of(cluster)) == cluster
    told: list[str] = []
    names = made_members(place, cluster, told.append)
    assert names == ["n3", "n4"]
    assert [line.split(",")[0] for line in told] == ["n1 has left", "v1 has left"]
    make_members(place, cluster, names)
    with pytest.raises(RefusedError, match="the disk of n1 is gone"):
        check_made(place, cluster, "n1")


@pytest.mark.parametrize(("held", "whose"), [("n3", "n3"), ("stranger", "another member")])
def test_no_member_is_started_in_the_directory_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, whose: str
) -> None:
    """Two directories were mixed up, and `status`, `kill` and `start` did it to the other one."""
    monkeypatch.setattr(running, "start_process", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(running, "_check_free", lambda _name, _address: None)
    make_members(str(tmp_path), THREE, [])
    write_cluster(str(tmp_path), THREE)
    stranger = replace(THREE.members[0], id=member_id(UUID(int=11), "n1"), directory="stranger")
    other = replace(THREE, cluster=UUID(int=11), members=(stranger,), backups=0)
    make_members(str(tmp_path), other, [])
    for before, after in ((held, "aside"), ("n1", held), ("aside", "n1")):
        (tmp_path / before).rename(tmp_path / after)
    for names in (["n1"], ["n2", "n1"]):
        with pytest.raises(RefusedError, match=f"n1 has the store of {whose}, and not that of n1"):
            start_members(str(tmp_path), names, lambda _: None)
    (tmp_path / "n1" / "manifest").write_bytes(b"damaged")
    with pytest.raises(pytest.fail.Exception, match="started"):  # it tells what is wrong itself
        start_members(str(tmp_path), ["n1"], lambda _: None)


def test_members_that_need_no_rescue_are_told_so_and_the_file_stays(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """The file forgot who was lost and who had joined, and nothing else was rescued."""
    place = removed(tmp_path / "c", THREE.without("n3"), "n1", "n2")
    done = run("cluster", "rescue", place, "--yes")
    assert (done.exit_code, "the directories of all members" in done.stderr) == (2, True)
    assert read_cluster(str(place)) == THREE.without("n3")
    shutil.rmtree(place)

    place.mkdir()
    make_members(str(place), THREE, [])
    rescue_cluster(str(place), THREE, ["n1"])  # and cut short before the file was written
    write_cluster(str(place), THREE.with_out("n1", True))
    assert run("cluster", "rescue", place, "--lost", "n2", "--lost", "n3", "--yes").exit_code == 0
    rescued = read_cluster(str(place))
    assert [(member.name, member.out) for member in rescued.members] == [("n1", False)]
    grown = replace(rescued, members=(*rescued.members, joined("n4", 4)))
    write_cluster(str(place), grown)
    done = run("cluster", "rescue", place, "--yes")
    assert (done.exit_code, "they need no rescue" in done.stderr) == (2, True)
    assert read_cluster(str(place)) == grown


def test_what_up_is_told_of_ports_has_to_be_so(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another base port was ignored, and addresses of lost members were told as ones to use."""
    place = removed(tmp_path / "c", THREE.without("n2"), "n1", "n3")
    monkeypatch.setattr(commands, "start_members", lambda *_arguments: False)
    for base in (7401, 18_420, 6400):
        done = run("cluster", "up", "--dir", place, "--base-port", base)
        assert (done.exit_code, "has ports from 7400 on" in done.stderr) == (2, True), done.stderr
    for given in ([], ["--base-port", 7400], ["--base-port", 7000]):
        done = run("cluster", "up", "--dir", place, *given)
        assert done.exit_code == 0, done.stderr
        assert done.stdout == "up: tidelog://127.0.0.1:7400,127.0.0.1:7402\n"


def test_where_nobody_answers_nothing_is_known_of_partitions_or_the_policy(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """`status` told that none is unavailable, and `policy` that nobody tells of losses."""
    place = removed(tmp_path / "c", THREE, "n1", "n2", "n3")
    done = run("cluster", "status", place)
    assert done.exit_code == 6
    for state in ("waiting", "taken over", "unavailable"):
        assert re.search(rf"^partitions {state}: +-$", done.stdout, re.MULTILINE), done.stdout
    done = run("cluster", "policy", place)
    assert done.exit_code == 6
    assert "nobody answers that tells which policy there is: no member runs" in done.stderr


def test_a_directory_of_one_member_is_not_that_of_a_cluster(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    # The hint was to make a cluster there, which is refused.
    place = tmp_path / "a b"
    made = run("server", "init", place, "--name", "a", "--members", "a=127.0.0.1:1")
    assert made.exit_code == 0
    assert made.stderr == f"run it with `tidelog server run '{place}'`\n"
    done = run("cluster", "status", place)
    assert done.exit_code == 4
    assert "It is that of one member" in done.stderr
    assert "cluster up" not in done.stderr


def test_a_disk_that_failed_is_in_the_way_by_its_log_or_by_its_data_file() -> None:
    data = up(said(N1, [0, 3], data_failure="no checkpoint: a sync failed"))
    both = up(said(N3, [2], log_failure="a sync failed", data_failure="it, too"))
    found = picture(**ALL | {"n1": data, "n3": both})
    [first, second] = [one for one in blocks(found) if one.kind in ("log", "data")]
    assert (first.kind, first.members) == ("data", ("n1",))
    assert first.text == (
        "n1 takes no checkpoints and no full copies any more: no checkpoint: a sync failed"
    )
    assert (second.kind, second.members) == ("log", ("n3",))
    assert "n3 writes nothing any more, as its log failed: a sync failed" in second.text
    assert "start it again" in first.next
    problems = {row["name"]: row["problem"] for row in node_rows(found)}
    assert problems["n1"] == "no checkpoint: a sync failed"
    assert problems["n3"] == "a sync failed"


def test_a_takeover_whose_copies_lack_something_points_to_the_log() -> None:
    stuck = said(N1, [0, 3], open=[True, False], blocked=[[3, "stuck", []]])
    [block] = blocks(picture(**(ALL | {"n1": up(stuck)})))
    assert (block.kind, block.partitions) == ("takeover", (3,))
    assert "without copies that lack what they must have" in block.text
    assert "look for `node.copy_lacks` in server.log of n1" in block.next


STORY = {
    "here": "copy", "open_here": False, "phase": None, "waits_for": [], "lwm": 5, "hwm": 12,
    "ranges": [[6, 2], [10, 1]], "epochs": [[1, 1], [2, 4]], "pending": [b"\x01" * 16],
    "stream": None, "followers": [], "followed": [9, 7], "listed": True, "decided": 4,
}  # fmt: skip


def told(story: dict[str, Any]) -> dict[str, Any]:
    """What is told of n1 in the story of partition 0, which n1 serves and n2 has said this of."""
    other = replace(ALL["n2"], story=story)
    found = picture(**(ALL | {"n2": other}))
    row: dict[str, Any] = story_of(found, shares_of(found)[0], [])["members"][1]
    return row


def test_the_story_of_a_copy_has_its_gaps_and_what_is_pending() -> None:
    row = told(STORY)
    assert (row["here"], row["does"]) == ("copy", "follows")
    assert (row["gaps"], row["ranges"]) == ([[6, 6], [9, 10]], [[7, 8], [11, 11]])
    assert row["pending"] == ["01" * 16]
    assert row["stream"] == {"items": 9, "durable": 7}
    shown = copy_text(row)
    assert (shown["gaps"], shown["pending"]) == (["6-6", "9-10"], 1)
    assert shown["stream"] == "7 of 9 durable"


@pytest.mark.parametrize(
    ("changed", "here", "does"),
    [
        ({"listed": False}, "copy", "sealed"),
        ({"followed": [0, 0]}, "copy", "stored"),
        ({"here": "none", "followed": None}, "stale", None),
        ({"here": "none", "followed": None, "hwm": 0}, "none", None),
        ({"here": "author", "followed": None, "phase": "reports"}, "primary", "reports"),
        ({"here": "author", "followed": None}, "primary", "released"),
        ({"here": "author", "followed": None, "open_here": True}, "primary", "serves"),
    ],
)
def test_a_member_is_something_to_a_partition(
    changed: dict[str, Any], here: str, does: str | None
) -> None:
    row = told(STORY | changed)
    assert (row["here"], row["does"]) == (here, does)


RETURN = [N3.bytes, 2, 1_000_000, "history", 3, "it was away", "nothing"]


def test_how_copies_came_back_is_not_told_without_the_primary(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That n1 does not answer was told as that nobody had come back since it was started.
    write_cluster(str(tmp_path), THREE)
    heard = replace(ALL["n2"], story=STORY)
    silent = MemberAnswer(pid=1, problem="timed out")
    for first, other, code, words in (
        (silent, heard, 6, "n1, the primary of partition 0, does not answer, and only it could"),
        (silent, replace(ALL["n2"], story=STORY | {"returns": [RETURN]}), 0, "does not answer: wh"),
        (ALL["n1"], heard, 6, "n1, the primary of partition 0, tells nothing now, and only it"),
        (replace(ALL["n1"], story=STORY), heard, 0, "n1 has seen nobody come back to partition 0"),
        (replace(ALL["n1"], story=STORY), silent, 0, "n2 did not answer: what was seen there is"),
    ):
        seen = picture(**(ALL | {"n1": first, "n2": other}))
        monkeypatch.setattr(showing, "look", lambda *_place, seen=seen: seen)
        done = run("cluster", "explain", tmp_path, 0)
        assert (done.exit_code, words in done.stderr) == (code, True), done.stderr


def test_a_story_of_another_form_is_an_error() -> None:
    for wrong in ({"ranges": [[1]]}, {"here": "there"}, {"pending": [None]}, {"followed": [1]}):
        with pytest.raises(ClusterError, match="cannot be right"):
            told(STORY | wrong)


def test_partitions_are_named_by_stretches_and_not_without_end() -> None:
    assert partitions_text([4]) == "1 partition (4)"
    assert partitions_text([5, 3, 4, 9]) == "4 partitions (3-5, 9)"
    assert partitions_text(range(0, 40, 2)) == "20 partitions (0, 2, 4, 6, 8, 10, ...)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lwms": []}, {"partitions": [1, 2]}, {"authors": [b"short"] * 2}, {"sets": [[], []]},
        {"changed": ["x", "y"]},
    ],
)  # fmt: skip
def test_copies_of_another_form_are_an_error(wrong: dict[str, Any]) -> None:
    assert len(held_of([copies([0, 1], [1, 1])])) == 2
    with pytest.raises(ClusterError, match="cannot be right"):
        held_of([copies([0, 1], [1, 1]) | wrong])
    with pytest.raises(ClusterError, match="cannot be right"):
        held_of([{}])


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (VIEW, None),
        (VIEW, {}),
        (VIEW, said(N1, [0], boot="1")),
        (VIEW, said(N1, [0], open=[])),
        (VIEW, said(N1, [0], member=b"short")),
        (VIEW, said(N1, [0], partitions=["x"])),
        (VIEW, said(N1, [0], blocked=[[0, "reports"]])),
        (VIEW, said(N1, [0], lagging=[[0, b"short", 1, 1]])),
        (VIEW, said(N1, [0], timing={"lease": None})),
        ([], said(N1, [0])),
        (view(4, [7], [1]), said(N1, [0])),
        (view(4, [0], []), said(N1, [0])),
    ],
)
def test_an_answer_of_another_form_is_an_error(seen: Any, answer: Any) -> None:
    with pytest.raises(ClusterError, match="cannot be right"):
        status_of(seen, answer)


def test_fields_and_counts_of_a_later_version_are_left_out() -> None:
    later = said(N1, [0, 3], counts={"clients": 1, "moons": 2}, weather="fine")
    assert node_rows(picture(**(ALL | {"n1": up(later)})))[0]["counts"]["moons"] == 2


# ------------------------------------------------------------------ questions

Answering = Callable[[socket.socket, FrameDecoder], None]


def receive(stream: socket.socket, decoder: FrameDecoder) -> Message:
    while not (messages := decoder.feed(stream.recv(decoder.missing))):
        pass
    return messages[0]


def tell(stream: socket.socket, *messages: Message) -> None:
    stream.sendall(frame([pack_message(message) for message in messages]))


def welcomed(stream: socket.socket, decoder: FrameDecoder) -> Message:
    """Do what a member does at the beginning; return the request."""
    theirs = receive(stream, decoder)
    assert theirs[4] == "tool"
    mine = Introduction(role="member", channel="client", member=N1.bytes, cluster=CLUSTER.bytes)
    tell(stream, replace(mine, number=theirs[9]).message())
    decoder.limits = KNOWN
    return receive(stream, decoder)


@contextmanager
def answering(how: Answering) -> Iterator[tuple[str, int]]:
    """An address at which one connection is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.settimeout(60)
                how(stream, FrameDecoder())

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


def ask(address: tuple[str, int], seconds: float) -> None:
    with talking(address, CLUSTER.bytes, seconds) as member_says:
        member_says.ask("status")


def test_a_member_is_asked_for_its_status() -> None:
    def member(stream: socket.socket, decoder: FrameDecoder) -> None:
        request = welcomed(stream, decoder)
        assert request[3:] == ["status", []]
        welcome = BY_NAME["welcome"].message(CLUSTER.bytes, b"", b"", view(3, [], []))
        known, newer = BY_NAME["known"].message(4), BY_NAME["topology"].message(VIEW)
        tell(stream, welcome)
        tell(stream, known, newer, BY_NAME["response"].message(request[1], said(N1, [0])))

    with answering(member) as address, talking(address, CLUSTER.bytes, 60) as member_says:
        answer = member_says.ask("status")
        seen = member_says.view
    assert status_of(seen, answer).decided == 4
    assert seen == VIEW


def test_of_many_partitions_one_page_after_the_other_is_asked_for() -> None:
    many = view(4, [0] * (PAGE + 1), [1] * (PAGE + 1))
    asked: list[list[Any]] = []

    def member(stream: socket.socket, decoder: FrameDecoder) -> None:
        request = welcomed(stream, decoder)
        tell(stream, BY_NAME["welcome"].message(CLUSTER.bytes, b"", b"", many))
        while len(asked) < 2:
            if asked:
                request = receive(stream, decoder)
            asked.append(request[3:])
            tell(stream, BY_NAME["response"].message(request[1], f"page {len(asked)}"))

    with answering(member) as address, talking(address, CLUSTER.bytes, 60) as member_says:
        assert member_says.ask_copies() == ["page 1", "page 2"]
    assert asked == [["copies", [0, PAGE]], ["copies", [PAGE, PAGE]]]


def test_a_member_of_another_cluster_refuses() -> None:
    def stranger(stream: socket.socket, decoder: FrameDecoder) -> None:
        receive(stream, decoder)
        tell(stream, Refusal("cluster", "this is another cluster").message())

    with answering(stranger) as address, pytest.raises(OSError, match="another cluster"):
        ask(address, 60)


def test_a_member_that_fails_says_why() -> None:
    def failing(stream: socket.socket, decoder: FrameDecoder) -> None:
        request = welcomed(stream, decoder)
        tell(stream, BY_NAME["failure"].message(request[1], "TL-1", "it is ending", {}))

    with answering(failing) as address, pytest.raises(OSError, match="it is ending"):
        ask(address, 60)


def test_somebody_else_at_the_address_is_told_from_a_member() -> None:
    def web(stream: socket.socket, _decoder: FrameDecoder) -> None:
        stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        stream.recv(4096)

    with answering(web) as address, pytest.raises(OSError, match="does not speak tidelog"):
        ask(address, 60)


def test_a_connection_that_is_closed_is_an_error() -> None:
    def closing(stream: socket.socket, decoder: FrameDecoder) -> None:
        receive(stream, decoder)

    with answering(closing) as address, pytest.raises(OSError, match="without an answer"):
        ask(address, 60)


def test_a_member_that_says_nothing_does_not_keep_anybody_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):
        ask(listener.getsockname(), 0.01)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 6),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), 6),
        (OSError(errno.EHOSTUNREACH, "No route to host"), 6),
        (TimeoutError("it did not answer in time"), 6),
        (ConnectionRefusedError("this is another cluster"), 3),
        (ConnectionAbortedError("it does not speak tidelog"), 3),
    ],
)
def test_where_nobody_answers_is_told_from_who_refuses(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, problem: OSError, code: int
) -> None:
    def refuse(*_arguments: object) -> None:
        raise problem

    monkeypatch.setattr(elsewhere, "talking", refuse)
    done = run("cluster", "status", "tidelog://nohost.invalid:8210")
    assert done.exit_code == code
    assert f"nohost.invalid:8210: {problem.strerror or problem}" in done.stderr


def test_who_does_not_say_who_it_is_is_not_waited_for_as_long_as_an_answer() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):  # noqa: SIM117
        with talking(listener.getsockname(), CLUSTER.bytes, 60, greeting=0.01):
            pass
    assert time.monotonic() - began < 30


def test_behind_its_greeting_a_member_has_all_the_time_for_its_answer() -> None:
    def member(stream: socket.socket, decoder: FrameDecoder) -> None:
        request = welcomed(stream, decoder)
        tell(stream, BY_NAME["response"].message(request[1], "said"))

    began = time.monotonic()
    with answering(member) as address, talking(address, CLUSTER.bytes, 60) as member_says:
        assert member_says.ask("status") == "said"
        assert member_says.deadline >= began + 60


def test_a_cluster_remembers_how_many_backups_it_began_with() -> None:
    with_copies = replace(THREE, backups=2)
    assert cluster_of_toml(toml_of(with_copies)) == with_copies
    assert "backups" not in toml_of(THREE)
    with pytest.raises(ClusterError, match="3 is not a number of backups for 3 members"):
        cluster_of_toml(toml_of(replace(THREE, backups=3)))


def test_a_cluster_remembers_how_many_copies_have_to_be_there() -> None:
    careful = replace(THREE, backups=2, min_in_sync=2)
    assert cluster_of_toml(toml_of(careful)) == careful
    assert "min_in_sync" not in toml_of(THREE)
    for least in (0, 4):
        text = toml_of(careful).replace("min_in_sync = 2", f"min_in_sync = {least}")
        with pytest.raises(ClusterError, match=f"{least} is not a number of copies"):
            cluster_of_toml(text)


# ------------------------------------------------------------------ the baseline

N4, V1 = (member_id(CLUSTER, name) for name in ("n4", "v1"))


def grown(
    baseline: tuple[UUID, ...] = (N1, N2, N3, V1),
    goals: tuple[tuple[UUID, ...], ...] = ((), (), (), ()),
    **more: Any,
) -> Picture:
    """Three members, the voter v1, and n4, which runs; partitions are with n1, n2, n3 and n1."""
    members = [[m.bytes, 1, True, "127.0.0.1:1"] for m in (N1, N2, N3, N4, V1)]
    told = {"members": members, "baseline": [m.bytes for m in baseline], "voters": [V1.bytes]}
    answer = status_of(VIEW, said(N1, [0, 3], **(told | more)))
    held = held_of(
        [copies(VIEW[4], VIEW[5]) | {"goals": [[m.bytes for m in goal] for goal in goals]}]
    )
    there = MemberAnswer(pid=17, status=answer, held=held)
    return picture_of(GROWN, {"n1": there} | dict.fromkeys(("n2", "n3", "n4", "v1"), SILENT))


RUNNING = replace(grown(), answers={name: grown().answers["n1"] for name in grown().answers})
"""The same as everybody answers."""


def stages(found: Picture) -> dict[str, str]:
    return {seat.member: seat.stage for seat in seats_of(found, shares_of(found))}


def told_of(found: Picture) -> str | None:
    shares = shares_of(found)
    return changes_text(seats_of(found, shares), shares)


def test_the_baseline_is_shown_by_what_each_is_to_it() -> None:
    found = grown()
    assert found.voting == ["n1", "n2", "n3", "v1"]
    shown = seats_of(found, shares_of(found))
    rows = [(s.member, s.stage, s.votes, s.voter, s.copies, s.to_come, s.to_go) for s in shown]
    assert rows == [
        ("n1", "in", True, False, 2, 0, 0),
        ("n2", "in", True, False, 1, 0, 0),
        ("n3", "in", True, False, 1, 0, 0),
        ("n4", "entering", False, False, 0, 0, 0),
        ("v1", "in", True, True, 0, 0, 0),
    ]
    assert told_of(found) == "n4 is entering"
    assert is_settled(found, shares_of(found))
    assert summary(found)["members_joining"] == ["n4"]
    assert [row["votes"] for row in node_rows(found)] == [True, True, True, False, True]


def test_a_member_that_was_declared_lost_has_a_row_that_says_so() -> None:
    # It is not asked, and the command ended with a KeyError.
    found = replace(grown((N1, N2, V1), lost_members=[N3.bytes]), cluster=GROWN.without("n3"))
    found = replace(
        found, answers={name: one for name, one in found.answers.items() if name != "n3"}
    )
    rows = {row["name"]: row for row in node_rows(found)}
    assert list(rows) == ["n1", "n2", "n3", "n4", "v1"]
    assert (rows["n3"]["state"], rows["n3"]["votes"], rows["n3"]["pid"]) == ("lost", False, None)
    by_others = grown((N1, N2, V1), lost_members=[N3.bytes])
    assert [row["state"] for row in node_rows(by_others)].count("lost") == 1


def test_the_process_of_a_member_of_another_machine_is_not_known() -> None:
    # It was -1.
    n2 = replace(up(said(N2, [1])), pid=running.PID_ELSEWHERE)
    assert [row["pid"] for row in node_rows(picture(**(ALL | {"n2": n2})))] == [17, None, 17]


def test_who_waits_to_be_asked_for_is_told_how() -> None:
    found = grown(auto_join=False)
    assert stages(found)["n4"] == "waiting"
    shares = shares_of(found)
    told = advice(seats_of(found, shares), "a place")
    assert any(one.endswith("`tidelog cluster baseline add 'a place' n4`") for one in told)
    assert stages(grown(auto_join=False, wanted=[[N4.bytes, True]]))["n4"] == "entering"


def test_what_moves_to_a_member_that_entered_is_counted() -> None:
    found = grown((N1, N2, N3, N4, V1), ((N4,), (), (), ()))
    assert told_of(found) == "1 of 4 partitions is on the way to others"
    seats = {seat.member: seat for seat in seats_of(found, shares_of(found))}
    assert (seats["n1"].to_go, seats["n4"].to_come, seats["n4"].copies) == (1, 1, 0)
    assert partition_rows(shares_of(found))[0]["goal"] == ["n4"]
    early = grown((N1, N2, N3, N4, V1))
    assert not is_settled(early, shares_of(early)), "four hold data, and three are placed"
    placed = [m.bytes for m in (N1, N2, N3, N4)]
    moving = grown((N1, N2, N3, N4, V1), ((N4,), (), (), ()), placed=placed)
    assert not is_settled(moving, shares_of(moving))
    still = grown((N1, N2, N3, N4, V1), placed=placed)
    assert is_settled(still, shares_of(still))


def test_who_leaves_is_out_once_it_holds_nothing_and_does_not_vote() -> None:
    asked: dict[str, Any] = {"wanted": [[N3.bytes, False]], "placed": [N1.bytes, N2.bytes]}
    leaving = grown(goals=((), (), (N2,), ()), **asked)
    assert told_of(leaving) == (
        "n4 is entering; n3 is leaving; 1 of 4 partitions is on the way to others"
    )
    assert summary(leaving)["members_leaving"] == ["n3"]
    assert stages(grown((N1, N2, V1), **asked))["n3"] == "leaving", "it holds partition 2"
    left = grown(wanted=[[N4.bytes, False]])
    assert stages(left)["n4"] == "out"
    assert (summary(left)["members_out"], summary(leaving)["members_out"]) == (["n4"], [])


def test_a_member_of_the_file_that_nobody_knows_is_joining() -> None:
    members = [[m.bytes, 1, True, "127.0.0.1:1"] for m in (N1, N2, N3, V1)]
    found = grown(members=members)
    assert stages(found)["n4"] == "joining"
    gone = replace(found, answers={**found.answers, "n4": MemberAnswer(pid=0)})
    told = advice(seats_of(gone, shares_of(gone)), "here")
    assert "n4 is not known yet: `tidelog cluster join here n4`" in told


def test_who_does_not_answer_is_told_of_with_the_command_that_tells_what_to_do() -> None:
    # `baseline show` had nothing of a member that hung.
    found = picture(**(ALL | {"n3": MemberAnswer(pid=17)}))
    assert advice(seats_of(found, shares_of(found)), "here") == [
        "n3 does not answer, and its vote is missing: `tidelog cluster status here` tells what to "
        "do"
    ]


def test_who_enters_and_is_away_is_told_of() -> None:
    # It was "entering", without a word of what it waits for.
    found = replace(RUNNING, answers={**RUNNING.answers, "n4": MemberAnswer(pid=0)})
    assert stages(found)["n4"] == "entering"
    assert advice(seats_of(found, shares_of(found)), "here") == [
        "n4 is away, and enters once it is there: `tidelog cluster start here n4`; if it is to "
        "stay away, `tidelog cluster baseline remove here n4`"
    ]


def test_without_a_majority_nothing_is_moved(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was that partition 0 is due, and to wait a moment.
    left = picture(n1=ALL["n1"], n2=MemberAnswer(pid=0), n3=MemberAnswer(pid=0))
    monkeypatch.setattr(commands, "found_cluster", lambda _place: THREE)
    monkeypatch.setattr(showing, "look", lambda *_place: left)
    for to in ("n1", "n2"):
        done = run("cluster", "move", "here", 0, to)
        assert done.exit_code == 6, done.stderr
        assert "partition 0 stays where it is: n2 and n3 do not answer" in done.stderr
        assert "next:  start 1 of them: `tidelog cluster start here n2`" in done.stderr


def lost_in(
    monkeypatch: pytest.MonkeyPatch, copies_of: dict[int, str | None], **away: MemberAnswer
) -> list[Any]:
    """Let partitions be lost, each with the best copy that is left; returns what is reset."""
    done: list[Any] = []
    seen = picture(**(ALL | {"n1": up(said(N1, [0, 3], lost=[*copies_of]))} | away))
    looked_at: list[int] = []

    def look_at(_place: str, _found: LocalCluster, number: int) -> tuple[Picture, Share, list[Any]]:
        looked_at[:] = [number]
        share = replace(shares_of(seen)[0], row=("n1", "n2", "n3"), partition=number)
        return replace(seen, names={**seen.names}), share, []

    monkeypatch.setattr(commands, "found_cluster", lambda _place: THREE)
    monkeypatch.setattr(commands, "told_losses", lambda *_place: {"lost": [*copies_of]})
    monkeypatch.setattr(showing, "look_at", look_at)
    monkeypatch.setattr(commands, "best_copy", lambda _picture: copies_of[looked_at[0]])
    monkeypatch.setattr(
        commands,
        "reset_partition",
        lambda _place, _found, number, name, *, empty: done.append((number, name, empty)),
    )
    return done


def test_all_that_is_lost_goes_on_and_what_nobody_has_is_named_with_its_own_command(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first one without a copy ended it, and the advice was to give --empty to all.
    reset = lost_in(monkeypatch, {1: "n2", 2: None, 3: None, 5: "n3"})
    done = run("cluster", "reset", "a place", "--all")
    assert (done.exit_code, reset) == (4, [(1, "n2", False), (5, "n3", False)])
    assert "nobody who answers has a copy of 2 partitions (2-3)" in done.stderr
    assert "`tidelog cluster reset 'a place' 2 3 --empty --yes`" in done.stderr
    reset.clear()
    assert run("cluster", "reset", "a place", 2, 5).exit_code == 4
    assert reset == [(5, "n3", False)]


def test_a_partition_is_reset_once_and_nothing_is_if_one_is_not_lost_or_somebody_is_away(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second time it was not lost any more, which ended the command with 2.
    reset = lost_in(monkeypatch, {1: "n2", 2: "n3"})
    assert run("cluster", "reset", "here", 2, 1, 2).exit_code == 0
    assert reset == [(2, "n3", False), (1, "n2", False)]
    reset.clear()
    done = run("cluster", "reset", "here", 2, 0)
    assert (done.exit_code, reset) == (2, []), done.stderr
    assert "partition 0 is not lost" in done.stderr
    reset = lost_in(monkeypatch, {1: "n1"}, n2=MemberAnswer(pid=0))
    done = run("cluster", "reset", "here", "--all")
    assert (done.exit_code, reset) == (7, []), done.stderr
    assert "n2 does not answer, and may have a newer copy of partition 1" in done.stderr
    assert run("cluster", "reset", "here", "--all", "--yes").exit_code == 0
    assert reset == [(1, "n1", False)]


def test_who_answers_begins_with_nothing_if_nobody_is_named(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = lost_in(monkeypatch, {1: "n2"})
    assert run("cluster", "reset", "here", 1, "--empty", "--yes").exit_code == 0
    assert reset == [(1, "n1", True)]


def test_nobody_goes_on_from_the_copy_of_a_member_that_is_lost(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The advice was to start it, which is refused.
    lost = {"lost": [2], "lost_members": [N3.bytes]}
    seen = picture(**(ALL | {"n1": up(said(N1, [0, 3], **lost)), "n3": MemberAnswer(pid=0)}))
    with pytest.raises(UsageError, match="n3 was declared lost: nobody goes on from its copy"):
        check_reset("here", seen, 2, "n3")
    check_reset("here", seen, 2, "n2")


def test_without_a_majority_the_baseline_says_so_and_nobody_is_to_be_declared_lost(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `lose` was advised, which nobody could decide.
    left = picture(n1=ALL["n1"], n2=MemberAnswer(pid=0), n3=MemberAnswer(pid=0))
    monkeypatch.setattr(showing, "found_cluster", lambda _place: THREE)
    monkeypatch.setattr(showing, "look", lambda *_place: left)
    shown = run("cluster", "baseline", "show", "here").stdout
    assert "n2 and n3 do not answer, and 2 of 3 members are needed" in shown
    assert "next: start 1 of them: `tidelog cluster start here n2`" in shown
    assert "cluster lose" not in shown


def test_what_begins_with_nothing_is_named(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = lost_in(monkeypatch, {1: "n2"})
    for wrong in ((), ("--all", "1"), ("--all", "--empty", "--yes")):
        done = run("cluster", "reset", "here", *wrong)
        assert (done.exit_code, reset) == (2, []), done.stderr
        assert "next:  `tidelog cluster losses here` tells which are lost" in done.stderr
    done = run("cluster", "reset", "here", 1, "--empty", "--yes", "--from", "n3")
    assert (done.exit_code, reset) == (0, [(1, "n3", True)])
    lost_in(monkeypatch, {})
    done = run("cluster", "reset", "here", "--all")
    assert (done.exit_code, done.stderr) == (0, "no partition is lost\n")


def test_what_is_lost_is_a_result_and_what_to_do_is_advice(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The list of what is lost went to stderr.
    told: dict[str, Any] = {
        "policy": "read-write-safe", "history": b"h" * 16, "lost": [3, 1], "losses": [],
        "resolved": [],
    }  # fmt: skip
    monkeypatch.setattr(showing, "found_cluster", lambda _place: THREE)
    monkeypatch.setattr(showing, "told_losses", lambda *_place: told)
    done = run("cluster", "losses", "here")
    assert re.search(r"^lost: +3, 1$", done.stdout, re.MULTILINE), done.stdout
    assert done.stderr == (
        "`tidelog cluster reset here --all` lets go on what somebody has a copy of, and names the "
        "rest\n"
    )
    told |= {"lost": [], "losses": [[8, 1, 1, 2, N2.bytes, 1, 0, 0]]}
    done = run("cluster", "losses", "here")
    assert re.search(r"^lost: +-$", done.stdout, re.MULTILINE), done.stdout
    assert ("nothing, at n2" in done.stdout, done.stderr) == (True, "")


def test_what_is_lost_neither_comes_nor_goes_and_the_lost_vote_is_told_of() -> None:
    # `baseline show` had 21 partitions to come and 21 to go, and "nothing moves".
    lost: dict[str, Any] = {"lost": [2], "lost_members": [N3.bytes]}
    goal = ((), (), (N2,), ())
    found = grown(goals=goal, **lost)
    seats = {seat.member: seat for seat in seats_of(found, shares_of(found))}
    assert (summary(found)["members_lost"], summary(grown())["members_lost"]) == (["n3"], [])
    n3 = seats["n3"]
    assert (n3.stage, n3.votes, n3.copies, n3.to_go) == ("lost", True, 1, 0)
    assert seats["n2"].to_come == 0
    missing = "n3 was declared lost, and its vote is missing until "
    listed = "its lost partitions go on: `tidelog cluster losses here` lists them"
    assert missing + listed in advice([n3], "here")
    assert advice([replace(n3, copies=0)], "here") == [missing + "others hold what it held"]
    assert advice([replace(n3, votes=False)], "here") == []
    whole = grown(goals=goal)
    at = {seat.member: seat for seat in seats_of(whole, shares_of(whole))}
    assert (at["n3"].to_go, at["n2"].to_come) == (1, 1)


def test_copies_of_what_is_lost_are_not_waited_for() -> None:
    # `start` waited 20 s for copies that nobody gets before a reset.
    def all_answer(**more: Any) -> Picture:
        found = grown(goals=((), (), (N2,), ()), **more)
        return replace(found, answers=dict.fromkeys(found.answers, found.answers["n1"]))

    assert running._catches_up(all_answer())
    assert not running._catches_up(all_answer(lost=[2], lost_members=[N3.bytes]))


def test_where_nobody_is_to_hold_data_any_more_it_is_said_who_may_stay() -> None:
    # All but a dead one were leaving when that was declared lost: everything stood still.
    asked = [[one.bytes, False] for one in (N1, N2)]
    found = grown(wanted=asked, lost_members=[N3.bytes])
    seats = [
        seat for seat in seats_of(found, shares_of(found)) if seat.member in ("n1", "n2", "n3")
    ]
    assert [seat.stage for seat in seats] == ["leaving", "leaving", "lost"]
    told = (
        "nobody is to hold data: let a member stay, `tidelog cluster baseline add here n1`, or let "
        "another one join"
    )
    assert advice(seats, "here")[0] == told
    voter = replace(seats[2], stage="in", voter=True)
    assert advice([*seats, voter], "here")[0] == told
    assert told not in advice([*seats, replace(voter, voter=False)], "here")


HUNG = ALL | {"n1": MemberAnswer(pid=17)}


def test_who_is_started_or_joins_does_not_wait_for_another_that_hangs() -> None:
    # `join` waited for it, and ended who had joined after 60 s: nothing was served any more.
    assert running._is_up(picture(**HUNG), ["n3"])
    assert not running._is_up(picture(**HUNG), ["n1"]), "it was started, and is to come"
    assert running._is_up(picture(**ALL), ["n3"])
    behind = {"n3": up(said(N3, [2], open=[False], leased=[False]))}
    assert not running._is_up(picture(**(HUNG | behind)), ["n3"])
    assert not running._is_up(picture(**(ALL | behind)), ["n1"]), "all are there: all is awaited"


@pytest.mark.parametrize(("started", "stay"), [(["n3"], ["n3"]), (["n1", "n2", "n3"], [])])
def test_who_is_late_stays_if_it_was_taken_in_by_a_cluster_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[str], stay: list[str]
) -> None:
    place, told, ended = str(tmp_path), list[str](), list[list[str]]()
    write_cluster(place, THREE)

    def late(*_about: object) -> None:
        raise NotServedError("after 60 s")

    monkeypatch.setattr(running, "pid_of", lambda at: 17 * (os.path.basename(at) not in started))
    monkeypatch.setattr(running, "start_process", lambda *_about: 18)
    monkeypatch.setattr(running, "_check_free", lambda *_about: None)
    monkeypatch.setattr(running, "_wait_until_served", late)
    monkeypatch.setattr(running, "look", lambda *_at: picture(**ALL))
    monkeypatch.setattr(running, "_end_all", lambda *about: ended.append(about[2]))
    with pytest.raises(NotServedError):
        running.start_members(place, ["n1", "n2", "n3"], told.append)
    assert ended == [[name for name in started if name not in stay]]
    assert [line for line in told if "stays" in line] == [
        f"{name} stays: the cluster has taken it in" for name in stay
    ]


def test_a_member_of_another_machine_is_started_there() -> None:
    # `tidelog cluster start` was named, which is refused for addresses.
    there, down = "tidelog://127.0.0.1:7400", MemberAnswer(pid=0)
    found = picture(**(ALL | {"n3": down}))
    shares = shares_of(found)
    told = [block.next for block in blocks_of(found, shares, there)]
    told += advice(seats_of(found, shares), there)
    failed = picture(**(ALL | {"n1": up(said(N1, [0, 3], log_failure="it is full"))}))
    told += [block.next for block in blocks_of(failed, shares_of(failed), there)]
    nobody = picture(**dict.fromkeys(ALL, down))
    told += [block.next for block in blocks_of(nobody, (), there)]
    assert len(told) == 4
    for line in told:
        assert "`tidelog server run DIR` on the machine of " in line
        assert not re.search("cluster (start|kill|up)", line)


def test_only_who_votes_counts_for_a_majority() -> None:
    found = grown((N1,), voters=[])
    assert found.voting == ["n1"]
    alone = replace(found, answers={**found.answers, "n1": MemberAnswer(pid=0)})
    assert alone.voting == ["n1", "n2", "n3"], "nobody tells"
    assert found.majority
    assert grown((N1,), voters=[], coordinator=N2.bytes).majority, "n1 alone is one"
    assert "majority" not in {block.kind for block in blocks(found)}
    lost = grown((N1, N2, N3), majority=False)
    [block, *_] = blocks(lost)
    assert (block.kind, block.members) == ("majority", ("n2", "n3"))
    assert "2 of 3 members are needed" in block.text


def test_who_joins_is_new_or_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path)

    def joins(found: Picture, name: str | None = None, *, voter: bool = False) -> LocalMember:
        monkeypatch.setattr(growing, "look", lambda *_place: found)
        return newcomer_of(place, found.cluster, name, voter=voter, base_port=None)

    with pytest.raises(RefusedError, match="the disk of n4 is gone"):
        joins(grown())
    with pytest.raises(RefusedError, match="n4 was declared lost"):
        joins(replace(grown(), cluster=GROWN.without("n4")), "n4")
    for name in ("n4", "v1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST_NAME).touch()
    assert joins(grown()).name == "n4", "it is entering still"
    new = joins(grown((N1, N2, N3, N4, V1)))
    assert (new.name, new.joined, new.voter, new.id) == (
        "n5",
        True,
        False,
        member_id(CLUSTER, "n5"),
    )
    assert new.address not in {member.address for member in GROWN.members}
    assert read_cluster(place).member("n5") == new
    assert joins(grown(), "w", voter=True).voter
    assert joins(grown(), "v1").voter
    for name, voter, problem in (
        ("n1", False, "began the cluster"),
        ("n4", True, "one that holds data"),
        ("a/b", False, "not a name"),
    ):
        with pytest.raises(UsageError, match=problem):
            joins(grown(), name, voter=voter)
    (tmp_path / "n9").mkdir()
    with pytest.raises(UsageError, match="there is a n9 in"):
        joins(grown(), "n9")
    nobody = picture_of(GROWN, dict.fromkeys(("n1", "n2", "n3", "n4", "v1"), SILENT))
    with pytest.raises(NotEnoughMembersError, match="nobody can join"):
        joins(nobody)
    with pytest.raises(NotEnoughMembersError, match="1 of the 3 members that vote answer"):
        joins(grown((N1, N2, N3), majority=False))


def test_a_member_whose_disk_is_lost_is_not_started_and_does_not_enter(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its directory was made again, and a process started; or it was to be started.
    write_cluster(str(tmp_path), GROWN)
    silent = dict.fromkeys(("n1", "n2", "n3", "n4", "v1"), SILENT)
    for seen, code, problem, what_next in (
        (grown(), 7, "the disk of n4 is gone: ", f"`tidelog cluster lose {tmp_path} n4`; then let"),
        (grown(lost_members=[N4.bytes]), 7, "n4 was declared lost", "`tidelog cluster join "),
        (picture_of(GROWN, silent), 6, "n4 has no store, and no member", "`tidelog cluster up --"),
    ):
        monkeypatch.setattr(commands, "look", lambda *_place, seen=seen: seen)
        for command in ("start", "baseline add"):
            done = run("cluster", *command.split(), tmp_path, "n4")
            assert (done.exit_code, problem in done.stderr) == (code, True), done.stderr
            assert what_next in done.stderr
    write_cluster(str(tmp_path), GROWN.without("n4"))
    for command in ("start", "baseline add"):
        done = run("cluster", *command.split(), tmp_path, "n4")
        assert (done.exit_code, "n4 was declared lost" in done.stderr) == (7, True)
        assert f"Let a new member join: `tidelog cluster join {tmp_path}`" in done.stderr
    assert not (tmp_path / "n4").exists()
    with sleeper(*command_line(str(tmp_path / "v1"))[3:]) as process:
        monkeypatch.setattr(commands, "look", lambda *_place: grown())
        done = run("cluster", "start", tmp_path, "v1")
        assert f"process {process.pid} runs v1 still, whose directory" in done.stderr


def test_who_was_declared_lost_has_left_and_is_not_lost_once_more(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was told that who is not there does not enter, and to start it, which is refused.
    for there in (GROWN.without("n4"), GROWN):
        write_cluster(str(tmp_path), there)
        seen = replace(grown(lost_members=[N4.bytes]), cluster=there)
        monkeypatch.setattr(commands, "look", lambda *_place, seen=seen: seen)
        done = run("cluster", "baseline", "remove", tmp_path, "n4")
        assert (done.exit_code, "n4 was declared lost" in done.stderr) == (7, True), done.stderr
        assert "holds nothing to hand over" in done.stderr
        assert f"next:  `tidelog cluster baseline show {tmp_path}` tells" in done.stderr
        for sure in ((), ("--yes",)):
            done = run("cluster", "lose", tmp_path, "n4", *sure)
            told = "n4 was declared lost already: it never comes back\n"
            assert (done.exit_code, done.stderr) == (0, told)
        assert read_cluster(str(tmp_path)).member("n4").lost


@pytest.mark.parametrize("others", [(), ("n2",)])
def test_who_is_named_as_lost_has_to_be_a_member(
    run: Callable[..., Any], tmp_path: Path, others: tuple[str, ...]
) -> None:
    # A name that was mistyped was said to be "not of the cluster any more", and that was all.
    write_cluster(str(tmp_path), THREE)
    lost = [word for name in (*others, "zz") for word in ("--lost", name)]
    done = run("cluster", "rescue", tmp_path, *lost, "--yes")
    assert (done.exit_code, "there is no member 'zz'" in done.stderr) == (4, True)
    assert "next:  The members are n1, n2, n3." in done.stderr
    assert read_cluster(str(tmp_path)) == THREE


@pytest.mark.parametrize(
    ("command", "at", "goes_on"),
    [
        ("up --dir DIR", "start_members", "the members that it has started have ended again; what"),
        ("start DIR n1", "start_members", "the members that it has started have ended again; what"),
        (
            "down DIR",
            "end_members",
            "the members go on ending by themselves; the same command waits",
        ),
        ("up --dir DIR", "wait_for_copies", "the members run, and their copies catch up by"),
        ("start DIR n1", "wait_for_copies", "the members run, and their copies catch up by"),
        ("join DIR n4", "start_members", "the members that it has started have ended again; what"),
        ("join DIR n4", "wait_until", "n4 goes on joining by itself; `tidelog cluster join /"),
        ("baseline remove DIR n4", "wait_until", "what was asked for stays asked for; `tidelog"),
        (
            "baseline add DIR n4",
            "wait_until",
            "what was asked for stays asked for; `tidelog clus",
        ),
    ],
)
def test_who_interrupts_is_told_what_goes_on(
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    at: str,
    goes_on: str,
) -> None:
    write_cluster(str(tmp_path), GROWN)
    for name in ("n4", "v1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST_NAME).touch()

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    for name in ("make_members", "check_made", "want", "wait_for_copies"):
        monkeypatch.setattr(commands, name, lambda *_arguments: None)
    monkeypatch.setattr(commands, "start_members", lambda *_arguments: True)
    for module in (commands, growing):
        monkeypatch.setattr(module, "look", lambda *_place: RUNNING)
    monkeypatch.setattr(commands, at, interrupted)
    done = run("cluster", *(tmp_path if word == "DIR" else word for word in command.split()))
    assert done.exit_code == 130
    assert done.stderr.startswith(f"interrupted: {goes_on}")
    assert len(done.stderr.split("\n")) == 3, "one line, and click's empty one"


@pytest.mark.parametrize("command", ["partitions", "exchanges", "gaps", "baseline show"])
@pytest.mark.parametrize("form", [(), ("--json",), ("--jsonl",)])
def test_where_no_member_answers_nothing_is_shown_and_that_is_no_success(
    run: Callable[..., Any], tmp_path: Path, command: str, form: tuple[str, ...]
) -> None:
    # Without rows they ended with 0, as if there were no gaps.
    write_cluster(str(tmp_path), THREE)
    done = run("cluster", *command.split(), tmp_path, *form)
    assert (done.exit_code, done.stdout) == (6, "")
    assert re.search("nobody tells of .*: no member runs", done.stderr)
    assert f"next:  `tidelog cluster up --dir {tmp_path}`." in done.stderr


@pytest.mark.parametrize("command", ["server", "cluster"])
def test_more_copies_than_there_are_cannot_be_asked_for(
    run: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    place = tmp_path / "c"
    what = {
        "server": ("init", place, "--name", "a", "--members", "a=127.0.0.1:1,b=127.0.0.1:2"),
        "cluster": ("up", "-n", 2, "--dir", place),
    }[command]
    done = run(command, *what, "--backups", 1, "--min-in-sync", 3)
    assert done.exit_code == 2
    assert "3 copies in sync cannot be had with 1 backups" in done.stderr


def test_more_backups_than_other_members_are_refused(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    done = run("cluster", "up", "-n", 2, "--backups", 2, "--dir", tmp_path / "c")
    assert done.exit_code == 2
    assert "2 members have 1 backup of a partition at most, not 2" in done.stderr
    assert "next:  Give --backups 1, or -n 3." in done.stderr
    assert os.listdir(tmp_path) == [], "a mistake leaves nothing behind"


def test_a_cluster_is_not_made_where_a_file_is(run: Callable[..., Any], tmp_path: Path) -> None:
    # It was "File exists", with the advice to give --force.
    there = tmp_path / "file"
    there.write_text("mine")
    done = run("cluster", "up", "-n", 1, "--dir", there)
    assert (done.exit_code, f"{there} is not a directory" in done.stderr) == (2, True), done.stderr
    assert there.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--dir", "tidelog://127.0.0.1:7400"), "tidelog://127.0.0.1:7400 is not a directory"),
        (
            ("--dir", "u1/u2", "--base-port", 65_534, "-n", 3),
            "127.0.0.1 has fewer than 3 free ports from 65534 on",
        ),
    ],
)
def test_a_cluster_that_cannot_be_made_leaves_nothing_behind(
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
    problem: str,
) -> None:
    # It was made, and then refused; or its directory and a lock were.
    monkeypatch.chdir(tmp_path)
    done = run("cluster", "up", *options)
    assert (done.exit_code, problem in done.stderr) == (2, True), done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["tidelog://127.0.0.1:1", "tidelog+unix:///run/socket"])
def test_the_address_of_a_cluster_is_no_store(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    # The hints were to check the path, and about views of Spark.
    monkeypatch.chdir(tmp_path)
    for command in (("get", url, "map", "key"), ("put", url, "map", "key", "1", "--create")):
        done = run("kv", *command)
        assert done.exit_code in (2, 4)
        assert "onnect to a cluster with `tidelog.connect`" in done.stderr
    assert os.listdir(tmp_path) == []
