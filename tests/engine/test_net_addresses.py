"""Which addresses may be used without encryption."""

from __future__ import annotations

import pytest

from tidelog.engine.net.addresses import check_address
from tidelog.errors import UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_encryption(host: str) -> None:
    check_address(host, insecure=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "db.example", "", "127.0.0.1.example"]
)
def test_other_addresses_are_refused_unless_that_is_asked_for(host: str) -> None:
    with pytest.raises(UsageError, match="not an address of loopback") as caught:
        check_address(host, insecure=False)
    assert "--insecure" in caught.value.hint
    check_address(host, insecure=True)
