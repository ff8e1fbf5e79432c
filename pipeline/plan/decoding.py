"""By which codecs, and into which types, a read is decoded: from the catalog of its stores.

Left out: decoding (``data.decoded``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...affinity.errors import CodecError, UsageError
from ...engine.codecs.registry import reading_codec
from ..base.codec_types import codec_type, sampled_type
from ..base.sql_types import parse_type
from ..data.archives import is_archive
from ..data.decoded import BothCodecs, Decoding, Side, codecs_of, document_decoder
from ..log.logs import Log
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLED_ROWS = 1_000

Sample = Callable[[ReadOptions], Iterator["pa.RecordBatch"]]
"""Reads ids of maps, keys and values as they are stored."""


def with_decoding(options: ReadOptions, sample: Sample, *, stream: bool) -> ReadOptions:
    """Return options that say how what they read is decoded, if they ask for that.

    Raises ``UsageError`` if that cannot be known, and ``CodecError`` for a codec that is not here.
    """
    if not options.decode or options.decoding is not None:
        return options
    name = options.namespace
    assert name is not None, "looked at when options are parsed"
    codecs, maps = _codecs(options.paths, options)
    given = (options.key_schema, options.value_schema)
    kinds = [
        str(parse_type(text)) if text is not None else codec_type(codec).kind
        for text, (codec, _) in zip(given, codecs, strict=True)
    ]
    for codec in codecs:
        reading_codec(*codec)
    if None in kinds:
        if stream:
            raise UsageError(
                f"a stream needs the types of what {_untyped(kinds, codecs)} holds: a sample could "
                "be another one when it is started again",
                hint='Set the options keySchema and valueSchema, such as "name string, n bigint".',
            )
        found = list(_sampled(options, sample, maps))
        for place, column in enumerate(("key", "value")):
            kinds[place] = kinds[place] or _type_of(
                [row[place] for row in found], codecs[place], column, name
            )
    key, value = (
        Side(codec, kind) for codec, kind in zip(codecs, kinds, strict=True) if kind is not None
    )
    decoding = Decoding(
        name=name, key=key, value=value, maps=maps, null=options.undecodable == "null"
    )
    return replace(options, decoding=decoding)


def _untyped(kinds: Sequence[str | None], codecs: BothCodecs) -> str:
    return " and ".join(
        codec for kind, (codec, _) in zip(kinds, codecs, strict=True) if kind is None
    )


def _codecs(paths: Sequence[str], options: ReadOptions) -> tuple[BothCodecs, frozenset[int] | None]:
    """Return the codecs of the map in all of some places, and the ids of maps that have them."""
    found: dict[str, BothCodecs] = {}
    maps: set[int] | None = set()
    for path in paths:
        if is_archive(path):
            found[path] = _given(path, options)
            maps = None
            continue
        record = codecs_recorded(path, options.namespace or "")
        found[path] = codecs_of(record)
        if maps is not None and len(paths) == 1:
            maps.add(record.id)
        names = [name for name, _ in found[path]]
        for asked, here in zip((options.key_codec, options.value_codec), names, strict=True):
            if asked not in (None, here):
                raise UsageError(
                    f"map {record.name!r} of {path} has codec {here}, not {asked}",
                    hint="Leave keyCodec and valueCodec out: they are for archives.",
                )
    if len(set(found.values())) > 1:
        told = "; ".join(
            f"{path}: {', '.join(name for name, _ in codecs)}" for path, codecs in found.items()
        )
        raise UsageError(
            f"the map {options.namespace!r} does not have the same codecs everywhere: {told}",
            hint="Read the stores one by one.",
        )
    return found[paths[0]], None if maps is None else frozenset(maps)


def codecs_recorded(path: str, name: str) -> Any:
    """Return the record of the newest map that had a name; ``UsageError`` if there is none."""
    record = Log(path).record_named(name)
    if record is None:
        raise UsageError(
            f"there is no map {name!r} in {path}", hint="`tidelog kv maps STORE` lists them."
        )
    return record


def _given(path: str, options: ReadOptions) -> BothCodecs:
    if options.key_codec is None or options.value_codec is None:
        raise UsageError(
            f"{path} is an archive, which does not say what codecs maps have",
            hint="Set the options keyCodec and valueCodec.",
        )
    return (options.key_codec, 1), (options.value_codec, 1)


def _sampled(
    options: ReadOptions, sample: Sample, maps: frozenset[int] | None
) -> Iterator[tuple[bytes, bytes]]:
    """Return the first rows of a read that have a value, as they are stored."""
    rows = (
        (row["key"], row["value"])
        for batch in sample(options)
        for row in batch.to_pylist()
        if row["value"] is not None and (not maps or row["map_id"] in maps)
    )
    return islice(rows, SAMPLED_ROWS)


def _type_of(encoded: Sequence[bytes], codec: tuple[str, int], column: str, name: str) -> str:
    """Return the type of a sample, leaving out what cannot be decoded."""
    decode = document_decoder(codec)
    values = []
    for data in encoded:
        try:
            values.append(decode(data))
        except CodecError:
            continue
    if not values:
        raise UsageError(
            f"the map {name!r} has nothing by which to tell the type of its {column}s, whose codec "
            f"is {codec[0]}",
            hint=f'Set the option {column}Schema, such as "name string, n bigint".',
        )
    return str(sampled_type(values))
