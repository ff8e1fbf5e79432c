"""The job ``load``: rows of Parquet, CSV or JSON lines become a load (``upkeep.load_files``).

Rows are placed by the hash of their key, brought together by partition, and sorted: by Spark, or
in the memory of this process (engine ``arrow``).  Both give the same load, ids and files aside.

Left out: encoding; a key or value is bytes as the codecs of the map make them, or text, which
becomes UTF-8.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from ...affinity.errors import NotFoundError, UsageError
from ...engine.upkeep.load_files import LoadManifest, read_load_manifest
from ..log.columns import BATCH_ROWS
from ..plan.options import parse_load
from ..spark.arranging import check_kinds, write_load
from ..spark.frames import places
from ..write.load_sinks import LoadWriter
from .runner import Format, Runner

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS: Mapping[str, Format] = {
    "parquet": "parquet",
    "csv": "csv",
    "jsonl": "jsonl",
    "json": "jsonl",
}
_ARROW_KINDS = ("string", "large_string", "binary", "large_binary")


def load(
    source: str,
    given: Mapping[str, str],
    runner: Runner,
    *,
    columns: tuple[str, str] = ("key", "value"),
    files: int | None = None,
    replace: bool = False,
) -> LoadManifest:
    """Make a load of a file, or of the files of a folder, whose columns have keys and values.

    ``given`` are the options of the sink; ``replace`` lets it take the place of another load.
    With ``onConflict=last`` the greatest value of a key counts, byte by byte, for rows have no
    order.  Raises ``UsageError`` for rows that cannot be loaded, ``NotFoundError``.
    """
    texts = {**given, "target": "files"}
    options = parse_load(texts)
    form = _format_of(source)
    if runner.engine == "arrow":
        writer = LoadWriter(options, replace=replace)
        try:
            table = _table(source, form, columns)
            return _from_table(table, writer, options.partitions, files or 1, runner)
        finally:
            writer.discard()
    write_load(
        source,
        form,
        columns,
        texts,
        partitions=options.partitions,
        files=files,
        replace=replace,
        master=runner.master,
    )
    manifest = read_load_manifest(options.path)
    runner.done(len(manifest.files))
    return manifest


def _format_of(source: str) -> Format:
    if not os.path.exists(source):
        raise NotFoundError(f"there is nothing at {source}", hint="Check the path.")
    names = [source]
    if os.path.isdir(source):
        names = [name for name in os.listdir(source) if name[0] not in "._"]
    found = {_FORMATS.get(name.rpartition(".")[2]) for name in names}
    form = found.pop() if len(found) == 1 else None
    if form is None:
        raise UsageError(
            f"{source} does not hold files of one kind, which is Parquet, CSV or JSON",
            hint=f"Name a file, or a folder of files, that end in {', '.join(_FORMATS)}.",
        )
    return form


# --------------------------------------------------------------------------------- one process


def _from_table(
    table: pa.Table, writer: LoadWriter, partitions: int, files: int, runner: Runner
) -> LoadManifest:
    """Write rows, all of them in memory."""
    tasks = min(files, partitions)
    table = table.append_column("partition", places(table.column("key"), partitions))
    table = table.sort_by([(name, "ascending") for name in ("partition", "key", "value")])
    # The first partition of each task, and so its first row.
    firsts = [-(-task * partitions // tasks) for task in range(tasks + 1)]
    sorted_places = table.column("partition").to_pylist()
    begins = [bisect_left(sorted_places, first) for first in firsts]
    staged = []
    for task, (begin, end) in enumerate(pairwise(begins)):
        rows = table.slice(begin, end - begin).select(["key", "value"])
        staged.append(writer.stage(str(task), rows.to_batches(max_chunksize=BATCH_ROWS)))
        runner.done(1)
    return writer.commit(staged)


def _table(source: str, form: Format, columns: tuple[str, str]) -> pa.Table:
    """Read keys and values."""
    import pyarrow as pa
    from pyarrow import csv, dataset

    texts = pa.schema([(name, pa.string()) for name in columns])
    as_texts = dataset.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=texts))
    kind = {"parquet": "parquet", "csv": as_texts, "jsonl": "json"}[form]
    try:
        # Left to themselves, texts of JSON that look like times become times.
        schema = texts if form == "jsonl" else None
        found = dataset.dataset(source, format=kind, schema=schema)
        types = {field.name: str(field.type) for field in found.schema}
        check_kinds({name: types.get(name) for name in columns}, _ARROW_KINDS)
        table = found.to_table(columns=list(columns))
    except pa.ArrowInvalid as error:
        raise UsageError(f"{source} cannot be read as {form}: {error}") from None
    # Large: sorting brings all rows together, and offsets of 32 bits end at 2 GiB.
    arrays = [column.cast(pa.large_binary()).combine_chunks() for column in table.columns]
    return pa.Table.from_arrays(arrays, names=["key", "value"])
