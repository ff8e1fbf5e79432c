"""Build the wheel, install it into an empty environment and use it from another folder.

An editable install hides what a wheel forgets: a package that is not listed, a file that is not
packed, a dependency that only a test needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from support import checkers

ROOT = Path(__file__).resolve().parents[2]

USE = """
import sys
before = set(sys.modules)
import tidelog
added = set(sys.modules) - before
assert added == {"tidelog"}, added
for name in tidelog.__all__:
    getattr(tidelog, name)

with tidelog.open("shop.tl") as db:
    db.map("stock")[b"apples"] = b"3"
with tidelog.open("shop.tl") as db:
    assert dict(db.map("stock").items()) == {b"apples": b"3"}

import asyncio
async def use():
    async with tidelog.aio.open("shop.tl") as db:
        await db.map("stock").set(b"pears", b"5")
        return await db.map("stock").get(b"apples")
assert asyncio.run(use()) == b"3"
print("tidelog", tidelog.__version__, "works from", tidelog.__file__)
"""
"""What an install without extras has to do."""

IMPORT = """
import importlib, pkgutil, tidelog
for module in pkgutil.walk_packages(tidelog.__path__, "tidelog."):
    importlib.import_module(module.name)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it prints; show that and stop where it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def clear_builds() -> None:
    """Remove what setuptools leaves: modules that are gone would come back from there."""
    for pattern in ("build/lib*", "build/bdist*"):
        for folder in ROOT.glob(pattern):
            shutil.rmtree(folder)


def build_wheel(folder: Path) -> Path:
    """The wheel of the checkout."""
    clear_builds()
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    clear_builds()
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_expected() -> set[str]:
    """What the wheel has to hold of the package, by its list of packages."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {"tidelog/py.typed"}
    for package in setuptools["packages"]:
        top, *rest = package.split(".")
        folder = ROOT.joinpath(setuptools["package-dir"][top], *rest)
        found.update("/".join((top, *rest, module.name)) for module in folder.glob("*.py"))
    return found


def check_contents(wheel: Path) -> None:
    """Compare the files of the wheel with those of the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    found = {name for name in names if ".dist-info/" not in name}
    if found != files_expected():
        sys.exit(f"{wheel.name} differs from the checkout: {sorted(found ^ files_expected())}")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        sys.exit(f"{wheel.name} holds no licence")


def check_types(python: Path, folder: Path) -> None:
    """Compare what type checkers find in a user's program with what they have to."""
    for name, found_by in checkers.CHECKERS.items():
        wrong = found_by(folder, python) ^ checkers.expected_by(name)
        if wrong:
            sys.exit(f"{name} finds other errors than the program announces: {sorted(wrong)}")


def check_installed(wheel: Path, folder: Path) -> None:
    """Install the wheel, alone and then with extras; use it outside of the checkout."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python, command = folder / "venv/bin/python", folder / "venv/bin/tidelog"
    run(python, "-m", "pip", "install", "-q", wheel)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    print(run(python, "-I", "-W", "error", "-c", USE, cwd=elsewhere), end="")
    bare = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if bare.returncode != 2 or "pip install 'tidelog[cli]'" not in bare.stderr:
        sys.exit(f"without extras the command says {bare.returncode}: {bare.stderr}")
    run(python, "-m", "pip", "install", "-q", f"{wheel}[cli,trio]")
    run(python, "-I", "-W", "error", "-c", IMPORT, cwd=elsewhere)
    for form in ([command], [python, "-m", "tidelog"]):
        print(run(*form, "--version", cwd=elsewhere), end="")
        run(*form, "db", "info", "shop.tl", cwd=elsewhere)
    check_types(python, elsewhere)


def main() -> None:
    """Build, compare, install, use."""
    with tempfile.TemporaryDirectory(prefix="tidelog-wheel-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        check_contents(wheel)
        check_installed(wheel, folder)
        print(f"{wheel.name}: {len(files_expected())} files, complete")


if __name__ == "__main__":
    main()
