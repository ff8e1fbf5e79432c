"""The stamp of all versions: fixed values, a second murmur3, and what it can tell apart."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidelog.affinity import stamp
from tidelog.affinity.errors import PlacementError
from tidelog.affinity.versions import VERSION_MAX, check_version

VERSIONS = st.lists(st.integers(0, VERSION_MAX), max_size=40)
MASK = 2**64 - 1


def rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & MASK


def mixed(number: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor & MASK
    return number ^ number >> 33


def murmur3(data: bytes, seed: int) -> int:
    """The first half of the 128-bit murmur3 for 64-bit machines, as its author describes it."""
    one, two = 0x87C37B91114253D5, 0x4CF5AD432745937F
    first = second = seed
    size = len(data)
    whole = size // 16 * 16
    for at in range(0, size, 16):
        low, high = struct.unpack("<QQ", data[at : at + 16].ljust(16, b"\0"))
        low = rotated(low * one & MASK, 31) * two & MASK
        high = rotated(high * two & MASK, 33) * one & MASK
        if at < whole:
            first = (rotated(first ^ low, 27) + second) * 5 + 0x52DCE729 & MASK
            second = (rotated(second ^ high, 31) + first) * 5 + 0x38495AB5 & MASK
        else:
            first, second = first ^ low, second ^ high
    first, second = first ^ size, second ^ size
    first = first + second & MASK
    second = second + first & MASK
    first, second = mixed(first), mixed(second)
    return first + second & MASK


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def test_the_second_murmur3_is_one() -> None:
    # The value that its author's own test program has for this text and seed 0.
    assert murmur3(b"The quick brown fox jumps over the lazy dog", 0) == 0xE34BBC7BBC071B6C


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], 8529238864467692590),
        ([0], -7910258917852379413),
        ([1, 2, 3], -4724951774589986183),
        ([VERSION_MAX] * 4, 1256967229257049304),
        (range(1000), 145152085990729491),
    ],
)
def test_the_stamp_never_changes(versions: list[int], expected: int) -> None:
    assert stamp(versions) == expected


@given(VERSIONS)
def test_the_stamp_is_a_murmur3_of_the_versions_in_four_bytes_each(versions: list[int]) -> None:
    data = b"".join(version.to_bytes(4, "big") for version in versions)
    assert stamp(versions) == signed(murmur3(data, 0x01000193))
    assert -(2**63) <= stamp(versions) < 2**63


@given(VERSIONS.filter(bool), st.data())
def test_one_version_more_or_less_is_another_stamp(
    versions: list[int], data: st.DataObject
) -> None:
    partition = data.draw(st.integers(0, len(versions) - 1))
    other = data.draw(st.integers(0, VERSION_MAX).filter(lambda v: v != versions[partition]))
    changed = [*versions[:partition], other, *versions[partition + 1 :]]
    assert stamp(changed) != stamp(versions)
    assert stamp([*versions, 0]) != stamp(versions)


@pytest.mark.parametrize("version", [-1, VERSION_MAX + 1, 1.0, "1", None, True])
def test_a_version_out_of_bounds_is_refused_with_its_partition(version: Any) -> None:
    with pytest.raises(PlacementError, match=f"the version of partition 1 is {version!r}"):
        stamp([0, version])
    with pytest.raises(ValueError, match="the version of partition 9"):
        check_version(version, 9)


@pytest.mark.parametrize("version", [0, 1, VERSION_MAX])
def test_the_bounds_are_versions_themselves(version: int) -> None:
    check_version(version, 0)
    assert stamp([version]) == stamp([version])
    assert VERSION_MAX == 2**31 - 1
