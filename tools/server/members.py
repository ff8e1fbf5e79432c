"""The members of a cluster, as the command line names them: names, addresses, ids.

Invariants:

- Names, ids and addresses follow from the arguments alone, in whatever order they are given: each
  machine makes its own member by itself, and all of them begin the same cluster.

Left out: whether an address may be used (``engine.net.addresses``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

from ...affinity.errors import UsageError
from ...engine.agreement.identity import member_id
from ...engine.system.environment import Address, address_text

PORT_MAX = 65_535
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

_ANYWHERE = frozenset(("0.0.0.0", "::"))


def parsed_address(text: str) -> Address:
    """Return host and port of ``HOST:PORT``; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise UsageError(f"{text!r} is not HOST:PORT", hint="Give it as 127.0.0.1:7400.")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise UsageError(
            f"{port!r} of {text!r} is not a port", hint=f"Give one of 1 to {PORT_MAX}."
        )
    return host.strip("[]"), int(port)


def reachable_address(text: str) -> str:
    """Return ``HOST:PORT`` at which others reach a member; all interfaces are not one."""
    address = parsed_address(text)
    if address[0] in _ANYWHERE:
        raise UsageError(
            f"{text!r} is every address of this machine, and none at which others reach it",
            hint="Give the one that the others are to use.",
        )
    return address_text(address)


def check_member_name(name: str) -> str:
    """Return a name that can be that of a member, and of a folder."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name of a member",
            hint="Use letters, digits, and - _ . between them, as in n1.",
        )
    return name


def addresses_in(text: str) -> tuple[str, ...]:
    """Return the addresses of ``HOST:PORT,...``."""
    return tuple(address_text(parsed_address(part.strip())) for part in text.split(","))


def named_members(text: str) -> dict[str, str]:
    """Return name and address of each member of ``NAME=HOST:PORT,...``, by name."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, address = part.strip().partition("=")
        if not equals:
            raise UsageError(f"{part!r} is not NAME=HOST:PORT", hint="As in n1=127.0.0.1:7400.")
        if check_member_name(name) in found:
            raise UsageError(f"the member {name!r} is named twice", hint="Give each its own name.")
        address = reachable_address(address)
        if address in found.values():
            raise UsageError(f"two members have the address {address}", hint="Give each its own.")
        found[name] = address
    return dict(sorted(found.items()))


def identified(cluster: UUID, members: Mapping[str, str]) -> list[tuple[UUID, str]]:
    """Return id and address of each member."""
    return [(member_id(cluster, name), address) for name, address in members.items()]
