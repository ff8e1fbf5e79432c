"""What a client decides, by golden scripts: no socket, no clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.client_scripts import played

SCRIPTS = sorted((Path(__file__).parent / "client_scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_client_decides_as_the_script_says(path: Path) -> None:
    script = path.read_text()
    assert script.startswith("# ")
    assert played(script) == script
