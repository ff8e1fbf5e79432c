"""A member whose configuration log is damaged serves no more: its data is found by ``salvage``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import tidelog
from support.real_members import RealMember, real_members, serves, url_of
from tidelog.codecs import I64, Str
from tidelog.tools.main import cli

MEMBERS, PARTITIONS, KEYS = 3, 8, 300


def lived(directory: Path) -> tuple[list[RealMember], dict[str, int]]:
    """Members that have ended, and what they had acknowledged."""
    with (
        real_members(directory, MEMBERS, PARTITIONS) as running,
        tidelog.connect(url_of(running)) as db,
    ):
        while not serves(db.status()):
            pass
        cities = db.map("cities", key=Str, value=I64)
        for n in range(KEYS):
            cities[f"city {n}"] = n
        for n in range(0, KEYS, 3):
            del cities[f"city {n}"]
        for n in range(1, KEYS, 3):
            cities[f"city {n}"] = -n
        return running, dict(cities.items())


@pytest.mark.parametrize("lost", ["nothing", "data"])
def test_what_a_member_had_is_there_though_it_cannot_start(lost: str, tmp_path: Path) -> None:
    members, acknowledged = lived(tmp_path)
    found: dict[str, int] = {}
    for member in members:
        journal = member.directory / "config.log"
        content = bytearray(journal.read_bytes())
        content[200] ^= 1
        journal.write_bytes(content)
        refused = CliRunner().invoke(cli, ["server", "run", str(member.directory)])
        assert refused.exit_code == 3
        assert "config.log, offset" in refused.output
        assert f"tidelog db salvage {member.directory} DIR" in refused.output
        if lost == "data":
            (member.directory / "data" / "data.mdb").unlink()

        new = tmp_path / f"new {member.directory.name}"
        done = CliRunner().invoke(cli, ["db", "salvage", str(member.directory), str(new)])
        assert done.exit_code == (3 if lost == "data" else 0), done.output
        assert "what its other members serve was never here" in done.output
        with tidelog.open(new) as db:
            found |= dict(db.map("cities", key=Str, value=I64).items())
    assert found == acknowledged


def test_the_only_member_that_is_left_is_told_to_run(tmp_path: Path) -> None:
    """It was told that other members have copies, also where a rescue had left none."""
    with (
        real_members(tmp_path, 2, 2, backups=1) as running,
        tidelog.connect(url_of(running)) as db,
    ):
        while not serves(db.status()):
            pass
        db.map("cities", key=Str, value=I64)["a"] = 1
    place = str(running[0].directory)
    done = CliRunner().invoke(cli, ["db", "salvage", place, str(tmp_path / "new")])
    assert done.exit_code == 2, done.output
    assert f"let it run: `tidelog server run {place}`" in " ".join(done.output.split())
