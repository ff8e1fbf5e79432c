"""The names of the package: resolved when first used, and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidelog.affinity
from tidelog.affinity import assignment, table, versions

LOADED = """
import sys, tidelog.affinity.errors
print(sorted(name for name in sys.modules if name.startswith("tidelog.affinity.")))
"""


def test_names_are_those_of_their_modules() -> None:
    assert tidelog.affinity.assign is assignment.assign
    assert tidelog.affinity.stamp is versions.stamp
    assert tidelog.affinity.PartitionRow is table.PartitionRow
    assert tidelog.affinity.PartitionTable is table.PartitionTable
    assert len(tidelog.affinity.__all__) == 4


def test_another_name_is_none_of_the_package() -> None:
    with pytest.raises(AttributeError, match=r"'tidelog\.affinity' has no attribute 'assing'"):
        tidelog.affinity.assing  # type: ignore[attr-defined] # noqa: B018


def test_errors_are_loaded_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['tidelog.affinity.errors']"
