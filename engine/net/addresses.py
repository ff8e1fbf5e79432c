"""Which addresses a member may listen at, or be reached at, without encryption."""

from __future__ import annotations

import ipaddress

from ...affinity.errors import UsageError


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
