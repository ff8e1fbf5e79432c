"""What mypy and pyright find in a user's program, and what they have to find by its comments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "typed" / "program.py"
_EXPECTED = re.compile(r"(mypy|pyright)\[([^\]]+)\]")

Errors = set[tuple[int, str]]
"""Lines, from 1, with the codes of the errors in them."""


def expected_by(checker: str, program: Path = PROGRAM) -> Errors:
    """The errors that a program announces in its comments."""
    found = set()
    for number, line in enumerate(program.read_text().splitlines(), 1):
        for name, codes in _EXPECTED.findall(line.partition("  # ")[2]):
            if name == checker:
                found |= {(number, code.strip()) for code in codes.split(",")}
    return found


def found_by_mypy(folder: Path, python: str | Path = sys.executable) -> Errors:
    """What ``mypy --strict`` finds; ``tidelog`` is in the folder, or installed for the Python.

    Tidelog's own modules are taken as those of an installed package: nothing is said about them.
    """
    options = ["--strict", "--config-file=", "--cache-dir=/dev/null", "--follow-imports=silent"]
    options += ["--python-executable", str(python), "--python-version=3.11", "--output=json"]
    printed = _printed_by("mypy", *options, _copied_to(folder), folder=folder)
    found = [json.loads(line) for line in printed.splitlines()]
    return {(error["line"], error["code"]) for error in found if error["severity"] == "error"}


def found_by_pyright(folder: Path, python: str | Path = sys.executable) -> Errors:
    """What pyright finds in its strict mode; ``tidelog`` is as in ``found_by_mypy``."""
    rules = {"typeCheckingMode": "strict", "reportUnusedExpression": False}
    (folder / "pyrightconfig.json").write_text(json.dumps({**rules, "pythonVersion": "3.11"}))
    options = ["--outputjson", "--pythonpath", str(python), "--project", str(folder)]
    _copied_to(folder)
    found = json.loads(_printed_by("pyright", *options, folder=folder))["generalDiagnostics"]
    return {(error["range"]["start"]["line"] + 1, error["rule"]) for error in found}


CHECKERS = {"mypy": found_by_mypy, "pyright": found_by_pyright}


def _copied_to(folder: Path) -> str:
    (folder / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    return PROGRAM.name


def _printed_by(checker: str, *options: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", checker, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 1:  # of both: errors were found; not a failure, nor nothing
        raise AssertionError(f"{checker} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
