"""Which addresses a member may listen at, or be reached at, without encryption."""

from __future__ import annotations

import ipaddress

from ...affinity.errors import UsageError
from ..system.environment import Address


def check_address(host: str, *, insecure: bool) -> None:
    """Raise ``UsageError`` for a host off loopback, unless ``insecure`` was asked for.

    Nothing is looked up: of all names only ``localhost`` is known to stay on this machine.
    """
    if not insecure and not _is_loopback(host):
        raise UsageError(
            f"{host!r} is not an address of loopback, and connections are not encrypted",
            hint="Use 127.0.0.1, or --insecure if everyone on that network may read and write.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(text: str) -> Address:
    """Return the address in ``host:port``; a path is that of a Unix socket, with port 0."""
    if text.startswith("/"):
        return text, 0
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise UsageError(f"{text!r} is not an address", hint="Give HOST:PORT.")
    return host.strip("[]"), int(port)
