"""What else frames of the views are asked for: where a key lies, what it is, what was replaced.

Left out: reading and writing (``datasource``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...affinity.errors import CodecError
from ...affinity.partitions import Space, partitions_of
from ..plan.options import parse
from ..plan.reads import resolved

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_BASE = "base"
"""What stands for an operation beside data that was there before."""


def partition_of(key: Column | str, partitions: int) -> Column:
    """Return the column of the partitions of encoded keys, in a store that has so many.

    The hash is not that of Spark's own functions.  A null key has that of an empty one.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    # Its stubs want to be told a kind of function, of which it then warns.
    place = arrow_udf(lambda keys: places(keys, partitions), "int")  # type: ignore[call-overload]
    column: Column = place(key)
    return column


def places(keys: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each encoded key; of null, that of an empty one."""
    import pyarrow as pa

    known = keys.fill_null(b"") if keys.null_count else keys
    return pa.array(partitions_of(known.to_pylist(), Space(0, partitions)), pa.int32())


def decode_key(key: Column | str, store: str, namespace: str, schema: str | None = None) -> Column:
    """Return the column of the keys of a map, out of their bytes, by the codec that it has there.

    ``schema`` is the type, if the codec has none of its own: without it a sample tells it.  A key
    that cannot be decoded raises ``CodecError``.
    """
    return _decoded("key", key, store, namespace, schema)


def decode_value(
    value: Column | str, store: str, namespace: str, schema: str | None = None
) -> Column:
    """Return the column of the values of a map, as ``decode_key`` does of keys."""
    return _decoded("value", value, store, namespace, schema)


def _decoded(
    name: str, column: Column | str, store: str, namespace: str, schema: str | None
) -> Column:
    from pyspark.sql.pandas.functions import arrow_udf

    kinds = {"key": "binary", "value": "binary", name: schema}
    given = {f"{side}Schema": kind for side, kind in kinds.items() if kind is not None}
    asked = {"path": store, "view": "changes", "namespace": namespace, "decode": "true", **given}
    decoding = resolved(parse(asked)).decoding
    assert decoding is not None
    side = decoding.key if name == "key" else decoding.value

    def told(place: int, error: Exception) -> None:
        raise CodecError(f"a {name} of map {namespace!r} cannot be decoded: {error}") from error

    # Its stubs want to be told a kind of function, of which it then warns.
    decode = arrow_udf(lambda found: side.decoded(found, told), side.kind)  # type: ignore[call-overload]
    made: Column = decode(column)
    return made


def with_preimages(changes: DataFrame, base: DataFrame) -> DataFrame:
    """Tell for each change what it replaced, at the cost of a shuffle.

    ``changes`` has all columns of its view, and begins at the cut of the snapshot ``base``
    (``snapshot_vector``).  It gets a column ``preimage``, null if there was no value.  With
    ``changeFormat=cdf`` it gets the rows of Delta Lake instead: ``insert``, ``update_preimage``
    and ``update_postimage``, and ``delete`` with the value that was deleted.

    Keys are told apart by the id of their map, whatever it is called.
    """
    from pyspark.sql import Window, functions as f

    delta = "_change_type" in changes.columns
    op, counter = ("_change_type", "_commit_version") if delta else ("op", "counter")
    before = base.select("map_id", "key", "value", base["counter"].alias(counter))
    window = Window.partitionBy("map_id", "key").orderBy(counter)
    told = (
        changes.unionByName(before.withColumn(op, f.lit(_BASE)), allowMissingColumns=True)
        .withColumn("preimage", f.lag("value").over(window))
        .where(f.col(op) != _BASE)
    )
    if not delta:
        return told
    rows = f.expr(
        """case
        when _change_type = 'delete' then array(struct(_change_type, preimage as value))
        when _change_type != 'update_postimage' then array(struct(_change_type, value))
        when preimage is null then array(struct('insert' as _change_type, value))
        else array(struct('update_preimage' as _change_type, preimage as value),
                   struct(_change_type, value))
        end"""
    )
    return (
        told.withColumn("_row", f.explode(rows))
        .withColumns({op: f.col(f"_row.{op}"), "value": f.col("_row.value")})
        .select(changes.columns)
    )
