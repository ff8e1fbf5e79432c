"""The digest of a range changes with every change in it."""

from __future__ import annotations

import pytest

from tidelog.engine.data.digests import range_digest


def test_the_digest_of_a_range_is_the_same_for_ever() -> None:
    digest = range_digest([b"a", b"b"], [1, 1], [7, 9])
    assert digest == range_digest((b"a", b"b"), (1, 1), (7, 9))
    assert digest.hex() == "76d8d52eb7ab05bb81a215280598a90e"


@pytest.mark.parametrize(
    ("keys", "epochs", "counters"),
    [
        ([b"a"], [1], [7]),
        ([b"a", b"b", b"c"], [1, 1, 1], [7, 9, 10]),
        ([b"a", b"c"], [1, 1], [7, 9]),
        ([b"a", b"b"], [1, 2], [7, 9]),
        ([b"a", b"b"], [1, 1], [7, 10]),
        ([b"ab", b""], [1, 1], [7, 9]),
        ([], [], []),
    ],
)
def test_a_change_in_a_range_changes_its_digest(
    keys: list[bytes], epochs: list[int], counters: list[int]
) -> None:
    assert range_digest(keys, epochs, counters) != range_digest([b"a", b"b"], [1, 1], [7, 9])
