"""Keys and values of one map as typed columns, by the codecs that the map has.

A row belongs to the map by its id: a map that was dropped and made again under its name is another
one, and may have other codecs.  What its rows hold is never read by codecs that are not theirs.

Left out: which codecs and types these are (``plan.decoding``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...affinity.errors import CodecError
from ...engine.codecs.byte_text import inline_bytes
from ...engine.codecs.classes import instance_maker
from ...engine.codecs.registry import Msgpack, codec_named, reading_codec
from ..base.codec_types import UnfitError, codec_type, fitting
from ..base.sql_types import parse_type
from ..log.columns import Fields
from ..log.logs import Log

if TYPE_CHECKING:
    import pyarrow as pa

    from ...wal.records import NamespaceRecord

DECODE_ERROR = "decode_error"
"""The column that says why a key or a value is null, if that is asked for."""

BothCodecs = tuple[tuple[str, int], tuple[str, int]]
"""Name and version of the codecs of keys and of values."""

_WHAT = {"key": "key", "value": "the value of key"}
_REFUSED = (CodecError, UnfitError, ValueError, TypeError, LookupError)


def codecs_of(record: NamespaceRecord) -> BothCodecs:
    """Return the codecs that a map was made with."""
    return (record.key_codec, record.key_version), (record.value_codec, record.value_version)


def document_decoder(codec: tuple[str, int]) -> Callable[[bytes], Any]:
    """Return what decodes bytes of a codec; those of a dataclass as the document that they are."""
    found = reading_codec(*codec)
    return found.decode if found.of is None else Msgpack.decode


def column_encoder(codec: tuple[str, int]) -> Callable[[Any], bytes]:
    """Return what encodes a value of a column; a struct stands for an instance of a dataclass."""
    found = codec_named(*codec)
    if found.of is None:
        return found.encode
    instance = instance_maker(found.of, found.name)
    return lambda fields: found.encode(instance(fields))


@dataclass(frozen=True, slots=True)
class Side:
    """The keys, or the values, of a map: a codec, and the type of the column."""

    codec: tuple[str, int]
    kind: str

    def reading(self) -> Callable[[bytes], Any]:
        """Return what makes what Arrow takes of encoded bytes."""
        decode, fit = document_decoder(self.codec), fitting(parse_type(self.kind))
        return lambda data: fit(decode(data))

    def decoded(self, column: pa.Array, told: Callable[[int, Exception], None]) -> pa.Array:
        """Return a column of bytes as one of values; ``told`` hears of each row that has none."""
        import pyarrow as pa

        read = self.reading()
        values: list[Any] = []
        for place, data in enumerate(column.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = read(data)
                except _REFUSED as error:
                    told(place, error)
            values.append(value)
        return pa.array(values, parse_type(self.kind).arrow())

    def encoded(self, column: pa.Array, told: Callable[[int, Exception], None]) -> pa.Array:
        """Return a column of values as one of bytes; ``told`` hears of what cannot be encoded."""
        import pyarrow as pa

        encode, plain = column_encoder(self.codec), codec_type(self.codec[0]).value
        kind = parse_type(self.kind)
        found: list[bytes | None] = []
        for place, value in enumerate(column.to_pylist()):
            data = None
            if value is not None:
                try:
                    data = encode(plain(value, kind))
                except _REFUSED as error:
                    told(place, error)
            found.append(data)
        return pa.array(found, pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the rows of one map become typed.

    ``maps`` are the ids of maps that have the codecs; None stands for all of them, if nothing tells
    the codecs of a map.  ``null``: what cannot be decoded is null, and a column says why.
    """

    name: str
    key: Side
    value: Side
    maps: frozenset[int] | None = None
    null: bool = False

    def fields(self, fields: Fields) -> Fields:
        """Return the columns of a view with their types as they are decoded."""
        kinds = {"key": self.key.kind, "value": self.value.kind}
        found = [(name, kinds.get(name, kind)) for name, kind in fields]
        return [*found, (DECODE_ERROR, "string")] if self.null else found

    def decoded(self, batch: pa.RecordBatch, wanted: Sequence[str], path: str) -> pa.RecordBatch:
        """Return a batch with what is wanted decoded; it has ``key`` and ``map_id`` besides.

        Raises ``CodecError`` that names map and key, unless that is to be null.
        """
        import pyarrow as pa

        keys, ids = (batch.column(name).to_pylist() for name in ("key", "map_id"))
        foreign = self._foreign(set(ids), path)
        errors: list[str | None] = [None] * batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        for name, side in (("key", self.key), ("value", self.value)):
            if name not in wanted and DECODE_ERROR not in wanted:
                continue

            def told(place: int, error: Exception, name: str = name) -> None:
                what = f"{_WHAT[name]} {inline_bytes(keys[place])} in map {self.name!r} of {path}"
                text = f"{what} cannot be decoded: {error}"
                if not self.null:
                    raise CodecError(
                        text,
                        hint="Set undecodable=null to go on with null there, or read it without "
                        "decode.",
                    ) from error
                errors[place] = text if errors[place] is None else f"{errors[place]}; {text}"

            column = columns[name]
            if foreign:
                for place, number in enumerate(ids):
                    if number in foreign and column[place].is_valid:
                        told(place, UnfitError(foreign[number]))
                column = pa.array(
                    [
                        None if number in foreign else data
                        for number, data in zip(ids, column.to_pylist(), strict=True)
                    ],
                    pa.binary(),
                )
            columns[name] = side.decoded(column, told)
        columns[DECODE_ERROR] = pa.array(errors, pa.string())
        return pa.RecordBatch.from_pydict({n: c for n, c in columns.items() if n in wanted})

    def _foreign(self, found: set[int | None], path: str) -> dict[int | None, str]:
        """Return why rows of maps cannot be decoded, by id, of those that have other codecs."""
        if self.maps is None or found - {None} <= self.maps:
            return {}
        wanted = self.key.codec, self.value.codec
        foreign: dict[int | None, str] = {}
        for number in found - {None} - self.maps:
            assert number is not None
            record = Log(path).record_of(number)
            if record is None:
                foreign[number] = f"nothing tells the codecs of map_id {number}, an earlier map"
            elif codecs_of(record) != wanted:
                told = " and ".join(f"{name} {version}" for name, version in codecs_of(record))
                foreign[number] = f"it is of an earlier map, map_id {number}, with codecs {told}"
        return foreign
