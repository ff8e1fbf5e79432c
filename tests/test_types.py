"""What type checkers and editors see: a user's program, checked by mypy and by pyright, and run."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tidelog
from support import checkers
from tidelog import aio
from tidelog.engine.api.choices import TransactionOptions
from tidelog.engine.api.database import Database
from tidelog.engine.store.options import GivenOptions, Options

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("checker", checkers.CHECKERS)
def test_a_users_program_has_the_errors_that_it_announces_and_no_others(
    checker: str, tmp_path: Path
) -> None:
    (tmp_path / "tidelog").symlink_to(ROOT)
    assert checkers.CHECKERS[checker](tmp_path) == checkers.expected_by(checker)


def test_what_the_checkers_allow_the_store_does(tmp_path: Path) -> None:
    program = importlib.import_module("typed.program")
    program.run(tmp_path / "store")


def test_the_options_of_an_open_are_the_fields_of_the_options() -> None:
    assert list(GivenOptions.__annotations__) == list(Options.__annotations__)
    assert get_type_hints(GivenOptions) == get_type_hints(Options)


@pytest.mark.parametrize("face", [Database, aio.Database])
def test_the_options_of_an_attempt_are_those_of_a_transaction(face: Any) -> None:
    taken = get_type_hints(face.transaction)
    for name in ("deadline", "return"):  # the deadline is for all attempts together
        del taken[name]
    assert taken == get_type_hints(TransactionOptions)


@pytest.mark.parametrize("call", [tidelog.open, aio.open, aio.open_with])
def test_an_open_takes_what_the_types_name(call: Any) -> None:
    (options,) = [p for p in inspect.signature(call).parameters.values() if p.kind == p.VAR_KEYWORD]
    assert options.annotation == "Unpack[GivenOptions]"
    assert not GivenOptions.__required_keys__ | TransactionOptions.__required_keys__
