"""The records about the store as a whole: its maps, its checkpoints, and the heads of segments.

Left out: numbers and updates (``transactions``, ``partitions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...affinity.partitions import Space, check_spaces
from .shapes import Run, check_numbers, checked_id, checked_number, checked_text, flatten, rows_of

HIDDEN = "\0"
"""How the name of a map begins that nobody may see yet; users can give no such name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRecord:
    """A namespace as it is from here on: first use, or a new name."""

    id: int
    name: str
    key_codec: str
    key_version: int
    value_codec: str
    value_version: int
    before_images: bool = False
    space: int = 0

    @property
    def hidden(self) -> bool:
        """Whether the map is being made, or was left behind by whoever did: nobody sees it."""
        return self.name.startswith(HIDDEN)

    def fields(self) -> list[object]:
        """Return the fields in the order of the format."""
        return [
            self.id,
            self.name,
            self.key_codec,
            self.key_version,
            self.value_codec,
            self.value_version,
            self.before_images,
            self.space,
        ]

    @staticmethod
    def of(body: list[Any]) -> NamespaceRecord:
        """Return the record with these fields."""
        number, name, key_codec, key_version, value_codec, value_version, before, space = body[:8]
        return NamespaceRecord(
            id=checked_number(number),
            name=checked_text(name),
            key_codec=key_codec,
            key_version=key_version,
            value_codec=value_codec,
            value_version=value_version,
            before_images=before,
            space=space,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNamespaceRecord:
    """The namespace and everything in it is gone; its id is never used again."""

    id: int
    time: int

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.id, self.time

    @staticmethod
    def of(body: list[Any]) -> DropNamespaceRecord:
        """Return the record with these fields."""
        number, time = body[:2]
        return DropNamespaceRecord(id=number, time=time)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint with everything below ``position`` is complete in the partition store."""

    position: int
    time: int

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.position, self.time

    @staticmethod
    def of(body: list[Any]) -> CheckpointRecord:
        """Return the record with these fields."""
        position, time = body[:2]
        return CheckpointRecord(position=position, time=time)


class Pending(NamedTuple):
    """A transaction that was prepared in a partition, and has no outcome there yet."""

    tx_id: bytes
    attempt: int
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """First record of each segment: what a reader needs that starts here.

    ``epochs``, ``lwms`` and ``hwms`` have one entry per partition; ``ranges`` maps a partition to
    its out-of-order ranges as (start, delta), if there are any.  ``epoch_tables`` has the epoch
    table of each partition that ever had a second epoch, as (epoch, first number).  ``spaces``
    divide the partitions; one that a namespace names is its place in that list.
    """

    time: int
    namespaces: list[NamespaceRecord]
    epochs: list[int]
    lwms: list[int]
    hwms: list[int]
    ranges: dict[int, list[tuple[int, int]]]
    epoch_tables: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    spaces: tuple[Space, ...] = ()

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return (
            self.time,
            [namespace.fields() for namespace in self.namespaces],
            self.epochs,
            self.lwms,
            self.hwms,
            {p: flatten(ranges) for p, ranges in self.ranges.items()},
            {p: flatten(table) for p, table in self.epoch_tables.items()},
            [(one.tx_id, one.attempt, one.run) for one in self.pending],
            flatten(self.spaces),
        )

    @staticmethod
    def of(body: list[Any]) -> StateRecord:
        """Return the record with these fields."""
        time, namespaces, epochs, lwms, hwms, ranges, tables, pending, spaces = body[:9]
        if not len(epochs) == len(lwms) == len(hwms):
            raise ValueError(f"{len(epochs)} epochs, {len(lwms)} LWMs and {len(hwms)} HWMs")
        for _, _, run in pending:
            check_numbers(run, 4)
        divided = tuple(Space(*row) for row in rows_of(spaces, 3))
        if divided:
            check_spaces(divided, len(lwms))
        return StateRecord(
            time=time,
            namespaces=[NamespaceRecord.of(fields) for fields in namespaces],
            epochs=epochs,
            lwms=lwms,
            hwms=hwms,
            ranges={p: list(zip(flat[::2], flat[1::2], strict=True)) for p, flat in ranges.items()},
            epoch_tables={
                p: tuple(zip(flat[::2], flat[1::2], strict=True)) for p, flat in tables.items()
            },
            pending=tuple(
                Pending(checked_id(tx_id), checked_number(attempt), Run(*run))
                for tx_id, attempt, run in pending
            ),
            spaces=divided,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRecord:
    """Nothing; the frame around it carries a newer ``synced``."""

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return ()

    @staticmethod
    def of(_body: list[Any]) -> IdleRecord:
        """Return the record with these fields."""
        return IdleRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """A segment ends here, and that of ``number`` goes on.  It stands in no frame of the log.

    ``first_position`` is where that one begins, ``end`` what was durable in it when the seal was
    written: the position behind its STATE frame.
    """

    number: int
    first_position: int
    end: int

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.number, self.first_position, self.end

    @staticmethod
    def of(body: list[Any]) -> SealRecord:
        """Return the record with these fields."""
        number, first_position, end = body[:3]
        if {type(number), type(first_position), type(end)} != {int}:
            raise ValueError(f"{body[:3]!r} are not three numbers")
        return SealRecord(number=number, first_position=first_position, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """A record of a later version that may be ignored."""

    type: int
    body: bytes
