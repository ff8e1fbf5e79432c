"""A cluster on this machine, from its beginning to its end: it loses a member, and it grows.

    python examples/cluster_walk.py [PORT]

Each command is shown with what it prints.  Everything happens in a temporary directory, which is
removed at the end, or by Ctrl-C.  PORT is the first one to try, if it is not to be 7400.

``docs/cluster.md`` shows what is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import tidelog

NAME = "walk"
"""The directory of the cluster, within the temporary one."""
CITIES = 100


def say(text: str) -> None:
    """Print what comes next."""
    print(f"\n# {text}", flush=True)


def tool(*words: str, more: tuple[str, ...] = ()) -> None:
    """Run a command of ``tidelog cluster``, and show it."""
    print("$", "tidelog cluster", *words, flush=True)
    command = [sys.executable, "-m", "tidelog", "cluster", *words, *more]
    subprocess.run(command, stderr=subprocess.STDOUT, check=True)


@contextmanager
def place() -> Iterator[None]:
    """Work in a temporary directory; no member runs when it is removed."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="tidelog-") as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            if os.path.exists(os.path.join(NAME, "cluster.toml")):
                # In a session of its own: a second Ctrl-C leaves nobody behind.
                command = [sys.executable, "-m", "tidelog", "-q", "cluster", "down", NAME]
                subprocess.run(command, start_new_session=True, check=False)
            os.chdir(before)


def write(value: int) -> None:
    """Give all cities a value, with whoever is there."""
    with tidelog.connect(NAME) as db:
        cities = db.map("cities", key=tidelog.codecs.Str, value=tidelog.codecs.I64)
        for number in range(CITIES):
            cities[f"c{number}"] = value
    print(f"wrote {CITIES} cities: {value}")


def read() -> None:
    """Tell which values the cities have."""
    with tidelog.connect(NAME) as db:
        cities = db.map("cities", key=tidelog.codecs.Str, value=tidelog.codecs.I64)
        found = list(cities.values())
    print(f"read {len(found)} cities: {sorted(set(found))}")


def walk(port: tuple[str, ...]) -> None:
    """Go all the way."""
    say("Three members, each of which has a copy of everything.")
    tool("up", "-n", "3", "--backups", "2", "--partitions", "4", "--dir", NAME, more=port)
    write(1)

    say("One of them dies. Others take over what it served, and reads and writes go on.")
    tool("kill", NAME, "n2")
    read()
    write(2)

    say("It comes back, and gets what it has missed: these numbers, and nothing else.")
    tool("start", NAME, "n2")
    tool("explain", NAME, "0")

    say("A fourth member joins. Some seconds later it votes, and gets its part of the data.")
    tool("join", NAME)
    tool("baseline", "show", NAME)
    read()

    say("One of the first three leaves: others have what it had before it votes no more.")
    tool("baseline", "remove", NAME, "n1")
    tool("baseline", "show", NAME)
    read()

    say("All of them end in order.")
    tool("down", NAME)


def main() -> None:
    """Walk, and leave nothing behind."""
    port = ("--base-port", sys.argv[1]) if len(sys.argv) > 1 else ()
    try:
        with place():
            walk(port)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
