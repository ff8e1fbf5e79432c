"""The public face: cheap to import, one set of classes, and everything that it promises."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import tidelog
import tidelog.testing
from support.tidy import LAYER_NAMES

ROOT = Path(__file__).resolve().parents[1]
# What the interpreter loads by itself, such as the finder of an editable install, does not count.
PRELUDE = "import sys; before = set(sys.modules); "


def printed_by(program: str, folder: Path) -> str:
    """What a program prints, run in another folder with no help from the environment."""
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_importing_tidelog_loads_one_module(tmp_path: Path) -> None:
    program = PRELUDE + "import tidelog; print(sorted(set(sys.modules) - before))"
    assert printed_by(program, tmp_path) == "['tidelog']"


@pytest.mark.parametrize("name", ["aio", "codecs", "errors"])
def test_public_modules_resolve_after_a_plain_import(name: str, tmp_path: Path) -> None:
    program = f"import tidelog; print(tidelog.{name}.__name__)"
    assert printed_by(program, tmp_path) == f"tidelog.{name}"
    assert printed_by(f"from tidelog import {name} as m; print(m.__name__)", tmp_path) == (
        f"tidelog.{name}"
    )


@pytest.mark.parametrize("name", ["errors", "codecs", "TidelogError"])
def test_errors_and_codecs_do_not_load_the_event_loop(name: str, tmp_path: Path) -> None:
    program = PRELUDE + f"import tidelog; tidelog.{name}; print('trio' in sys.modules)"
    assert printed_by(program, tmp_path) == "False"


def test_a_store_without_trio_does_not_load_the_event_loop(tmp_path: Path) -> None:
    program = """
import sys, tidelog
for _ in range(2):
    with tidelog.open("store", partitions=2) as db:
        db.map("users")[b"ada"] = b"x"
        db.checkpoint()
print("trio" in sys.modules)
"""
    assert printed_by(program, tmp_path) == "False"


def test_a_store_under_asyncio_does_not_load_trio(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from tidelog import aio
async def main():
    async with aio.open("store", partitions=2) as db:
        await db.map("users").set(b"ada", b"x")
        async with db.transaction("pessimistic") as tx:
            await tx[db.map("users")].discard(b"ada")
asyncio.run(main())
print("trio" in sys.modules)
"""
    assert printed_by(program, tmp_path) == "False"


@pytest.mark.parametrize("name", tidelog.testing.__all__)
def test_the_face_for_tests_shows_what_it_has(name: str) -> None:
    assert name in dir(tidelog.testing)
    assert getattr(tidelog.testing, name)


@pytest.mark.parametrize("name", tidelog.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(tidelog, name) is getattr(tidelog, name)
    assert name in dir(tidelog)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'tidelog' has no attribute 'opn'$"):
        getattr(tidelog, "opn")  # noqa: B009  # written out, mypy refuses it, as it should


def test_a_second_import_of_the_root_finds_the_same_classes() -> None:
    # pytest imports the root under the name of the checkout's folder.
    faces = [module for module in list(sys.modules.values()) if "_OWNERS" in vars(module)]
    assert tidelog in faces
    for face in faces:
        assert face.TidelogError is tidelog.TidelogError
        assert face.open is tidelog.open


def test_no_layer_is_imported_by_its_bare_name() -> None:
    bare = {name.partition(".")[0] for name in list(sys.modules)} & set(LAYER_NAMES)
    assert bare == set()


def public_names(owner: ModuleType) -> set[str]:
    """``__all__`` of a module, or the public classes that it defines."""
    classes = {
        name
        for name, value in vars(owner).items()
        if isinstance(value, type) and value.__module__ == owner.__name__ and name[0] != "_"
    }
    return set(getattr(owner, "__all__", classes))


@pytest.mark.parametrize(
    ("public", "owner"),
    [
        ("tidelog.errors", "tidelog.affinity.errors"),
        ("tidelog.codecs", "tidelog.engine.codecs.registry"),
        ("tidelog.aio", "tidelog.engine.aio.database"),
    ],
)
def test_public_modules_offer_what_their_owner_has(public: str, owner: str) -> None:
    face, source = importlib.import_module(public), importlib.import_module(owner)
    offered = {name for name in vars(face) if not name.startswith("_")} - {
        "annotations",
        "TYPE_CHECKING",
    }
    assert offered == public_names(source)
    assert all(getattr(face, name) is getattr(source, name) for name in offered)


def test_the_version_is_a_literal_that_the_build_can_read() -> None:
    assert f'\n__version__ = "{tidelog.__version__}"\n' in (ROOT / "__init__.py").read_text()


def test_the_changelog_knows_the_version() -> None:
    assert f"## {tidelog.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_types_are_announced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"] == {"tidelog": ["py.typed"]}
    assert (ROOT / "py.typed").read_bytes() == b""


@pytest.mark.parametrize("name", ["conftest.py", "setup.py"])
def test_no_scripts_lie_in_the_root(name: str) -> None:
    # Every module of the root goes into the wheel.
    assert not (ROOT / name).exists()
