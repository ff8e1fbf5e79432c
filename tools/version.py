"""``tidelog version``: which versions of code and formats are here."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from .. import __version__
from ..engine.files.manifest import STORE_FORMAT
from ..wal.format import FORMAT_VERSION
from .shell.commands import ToolCommand, json_options, settings_of
from .shell.terminal import write_fields, write_json

LIBRARIES = ("lmdb", "msgpack", "mmh3", "sortedcontainers", "crc32c", "trio", "click", "rich")
"""What a store, the command and Trio's tasks need; the last three come with extras."""


@click.command(cls=ToolCommand)
@json_options
@click.pass_context
def version(ctx: click.Context, form: str) -> None:
    """Show the versions of tidelog, its formats, Python and the libraries."""
    fields = {
        "version": __version__,
        "store_format": STORE_FORMAT,
        "log_format": FORMAT_VERSION,
        "python": platform.python_version(),
    }
    libraries = {name: _version_of(name) for name in LIBRARIES}
    if form == "text":
        told = [f"{name} {found or 'not installed'}" for name, found in libraries.items()]
        shown = {"libraries": told}
        write_fields(settings_of(ctx), fields | shown)
    else:
        write_json({"v": 1, "type": "version", **fields, "libraries": libraries})


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
