"""The options of reads and writes, as Spark hands them over: texts by case-insensitive names.

Left out: what a view does with them (``reads``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...affinity.errors import UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...engine.codecs.byte_text import parse_bytes
from ...engine.codecs.registry import Bytes, codec_named
from ...engine.data.namespaces import check_name
from ..base.remote import local_path, place_of_option
from ..base.sql_types import parse_type
from ..base.times import time_of
from ..data.decoded import Decoding
from ..log.columns import BATCH_ROWS, ChangeFormat

ViewName = Literal["snapshot", "changes", "wal", "meta"]
ReadMode = Literal["FAILFAST", "PERMISSIVE"]
Consistency = Literal["transaction", "partition"]
Atomicity = Literal["batch", "partition"]
OnConflict = Literal["fail", "last"]
Target = Literal["store", "files"]
Undecodable = Literal["fail", "null"]
Known = list[tuple[str, str, Callable[[str], Any]]]
"""Options: name, field, and what reads the text."""

TASK_BYTES = 64 << 20
TASK_BYTES_MIN = 256 << 10
"""A task costs more than it takes to read so much."""
WRITER_BYTES_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is to be read, and how.

    ``starting`` and ``ending`` are ``earliest``, ``latest``, or the JSON of a vector; ``ending``
    None is the newest.  ``since`` is a time to start at, in microseconds UTC; ``as_of`` is
    ``latest``, the id of a checkpoint, a time, or the JSON of a vector.  ``bytes_per_second`` is
    what all tasks of a snapshot may read together.  ``most_changes`` and ``most_bytes`` bound a
    micro-batch.  ``bases`` are copies of the stores, with whose data a stream begins.  ``decoding``
    is what ``decode`` asks for, once it is known (``decoding``).  ``origins`` are the places that
    some paths are copies of, once these were made.
    """

    view: ViewName
    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    partitions: frozenset[int] | None = None
    namespace: str | None = None
    prefix: bytes | None = None
    start_key: bytes = b""
    end_key: bytes | None = None
    as_of: str | None = None
    consistency: Consistency = "transaction"
    bytes_per_second: int | None = None
    starting: str | None = None
    since: int | None = None
    ending: str | None = None
    rollbacks: bool = False
    catalog: bool = False
    form: ChangeFormat = "tidelog"
    fail_on_data_loss: bool = True
    most_changes: int | None = None
    most_bytes: int | None = None
    bases: tuple[str, ...] = ()
    decode: bool = False
    key_schema: str | None = None
    value_schema: str | None = None
    key_codec: str | None = None
    value_codec: str | None = None
    undecodable: Undecodable = "fail"
    decoding: Decoding | None = None
    origins: tuple[tuple[str, str], ...] = ()
    mode: ReadMode = "FAILFAST"
    batch_rows: int = BATCH_ROWS
    task_bytes: int = TASK_BYTES
    task_bytes_min: int = TASK_BYTES_MIN
    tasks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and how; ``writer`` and ``number`` tell a batch from its repetition.

    ``most_updates`` is how many a transaction may have.  ``encode``: the columns are keys and
    values as they are, and not as bytes.  The codecs are those of a map that is not there yet.
    """

    path: str
    namespace: str | None = None
    atomicity: Atomicity = "batch"
    on_conflict: OnConflict = "fail"
    writer: str | None = None
    number: int | None = None
    most_updates: int | None = None
    encode: bool = False
    key_codec: str | None = None
    value_codec: str | None = None
    target: Target = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Where to write a load, and for which map of a store with so many partitions."""

    path: str
    namespace: str
    partitions: int
    key_codec: str = Bytes.name
    value_codec: str = Bytes.name
    on_conflict: OnConflict = "fail"
    target: Target = "files"


_RIVALS = (
    ("startingCounters", "startingTimestamp", "initialSnapshot"),
    ("maxChangesPerTrigger", "maxBytesPerTrigger"),
)


def parse(given: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
    """Return the options of a read; ``UsageError`` names what is unknown, missing or of no use.

    ``stream`` None stands for both, while nobody knows yet.
    """
    texts = _texts(given)
    texts.setdefault("view", ("view", "snapshot"))
    view = _view(texts["view"][1])
    subject = f"view {view!r}" + (" in a stream" if stream else "")
    known: Known = [("view", "view", _view), *_known(view, stream)]
    options = ReadOptions(**_fields(texts, known, subject))
    for names in _RIVALS:
        given_too = [texts[name.lower()][0] for name in names if name.lower() in texts]
        if len(given_too) > 1:
            raise UsageError(
                f"{' and '.join(given_too)} exclude each other", hint="Give one of them."
            )
    _check_decode(options, texts)
    if options.bases and len(options.bases) != len(options.paths):
        raise UsageError(
            f"{len(options.paths)} stores, and {len(options.bases)} copies to begin with",
            hint="initialSnapshot is a copy of each store, in the order of path.",
        )
    return options


_WITH_DECODE = ("keySchema", "valueSchema", "keyCodec", "valueCodec", "undecodable")


def _check_decode(options: ReadOptions, texts: Mapping[str, tuple[str, str]]) -> None:
    """Raise ``UsageError`` if what belongs to ``decode`` is there without it, or not with it."""
    alone = [name for name in _WITH_DECODE if name.lower() in texts]
    if alone and not options.decode:
        raise UsageError(f"{' and '.join(alone)} without decode", hint="Set decode=true, too.")
    if options.decode and options.namespace is None:
        raise UsageError(
            "decode needs the option namespace: each map has types of its own",
            hint="Read maps one by one.",
        )
    if options.decode and options.catalog:
        raise UsageError(
            "decode and includeCatalog exclude each other: the value of a rename is a name",
            hint="Read drops and renames apart.",
        )


def parse_write(given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Return the options of a write; raises as ``parse`` does."""
    texts = _texts(given)
    if stream:
        texts.pop("checkpointlocation", None)  # Spark's own, which it hands on
    known: Known = [
        ("path", "path", local_path),
        ("namespace", "namespace", str),
        ("atomicity", "atomicity", _one_of(Atomicity)),
        ("onConflict", "on_conflict", _one_of(OnConflict)),
        ("txnAppId", "writer", _writer),
        ("maxOpsPerTx", "most_updates", _positive),
        ("encode", "encode", _flag),
        ("decode", "encode", _flag),  # of a view: what is read so is inserted so
        ("keyCodec", "key_codec", _codec),
        ("valueCodec", "value_codec", _codec),
    ]
    if not stream:
        known += [("txnVersion", "number", _natural), ("target", "target", _one_of(Target))]
    options = WriteOptions(**_fields(texts, known, "a stream written" if stream else "a write"))
    if options.namespace is None and (options.encode or options.key_codec or options.value_codec):
        raise UsageError(
            "encode, keyCodec and valueCodec need the option namespace",
            hint="Write maps one by one.",
        )
    if not stream and (options.writer is None) != (options.number is None):
        raise UsageError(
            "txnAppId and txnVersion belong together",
            hint="The first names who writes, the second counts its batches upwards.",
        )
    return options


def is_load(given: Mapping[str, str]) -> bool:
    """Tell whether a write goes into files."""
    return any((name.lower(), text.lower()) == ("target", "files") for name, text in given.items())


def parse_load(given: Mapping[str, str]) -> LoadOptions:
    """Return the options of a write into files; raises as ``parse`` does."""
    texts = _texts(given)
    known: Known = [
        ("path", "path", local_path),
        ("namespace", "namespace", check_name),
        ("partitions", "partitions", _partitions),
        ("keyCodec", "key_codec", _codec),
        ("valueCodec", "value_codec", _codec),
        ("onConflict", "on_conflict", _one_of(OnConflict)),
        ("target", "target", _one_of(Target)),
    ]
    fields = _fields(texts, known, "a load")
    for name, needed in (
        ("namespace", "name of the map"),
        ("partitions", "partition count of the store"),
    ):
        if name not in fields:
            raise UsageError(f"the option {name} is missing", hint=f"Give the {needed}.")
    return LoadOptions(**fields)


def is_table(given: Mapping[str, str]) -> bool:
    """Tell whether options are those with which a table of Spark's catalog is made."""
    return any(name.lower() == "provider" for name in given)


_OF_TABLE = ("owner", "location", "provider", "external", "is_managed_location", "comment")


def table_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return what options are left without those that Spark's catalog has added."""
    if not is_table(given):
        return dict(given)
    found = {
        name: text
        for name, text in given.items()
        if name.lower() not in _OF_TABLE and not name.lower().startswith("option.")
    }
    place = next((text for name, text in given.items() if name.lower() == "location"), None)
    if place is not None and not any(name.lower() in ("path", "paths") for name in found):
        found["path"] = place
    return found


def _texts(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return names and texts by lower-case name; ``load([...])`` has a JSON list as ``paths``."""
    texts = {name.lower(): (name, text) for name, text in table_options(given).items()}
    if "paths" in texts and "path" in texts:
        raise UsageError("path and paths exclude each other", hint="Give one of them.")
    if "paths" in texts:
        texts["path"] = texts.pop("paths")
    return texts


def _fields(texts: dict[str, tuple[str, str]], options: Known, subject: str) -> dict[str, Any]:
    """Read the texts by what reads each option; return what they say, by field."""
    known = {name.lower(): (name, field, read) for name, field, read in options}
    unknown = [name for low, (name, _) in texts.items() if low not in known]
    if unknown:
        raise UsageError(
            f"{subject} has no option {', '.join(map(repr, unknown))}",
            hint=f"Its options are {', '.join(name for name, _, _ in known.values())}.",
        )
    if "path" not in texts:
        raise UsageError(
            "the option path is missing",
            hint='Name a store, a hot copy or a folder of segments: .option("path", ...).',
        )
    fields: dict[str, Any] = {}
    for low, (_, text) in texts.items():
        name, field, read = known[low]
        try:
            fields[field] = read(text)
        except ValueError as error:
            raise UsageError(f"option {name}={text!r}: {error}") from None
    return fields


def _view(text: str) -> ViewName:
    if text not in get_args(ViewName):
        raise UsageError(
            f"there is no view {text!r}", hint=f"There are {', '.join(get_args(ViewName))}."
        )
    return text  # type: ignore[return-value]  # looked at above


def _known(view: ViewName, stream: bool | None) -> Known:
    """Return the options of a view."""
    both: Known = [
        ("path", "paths", _paths),
        ("columns", "columns", _names),
        ("batchRows", "batch_rows", _positive),
        ("maxBytesPerTask", "task_bytes", _positive),
        ("minPartitions", "tasks", _positive),
    ]
    if view == "meta":
        return both
    if view == "wal":
        if not stream:
            both.append(("mode", "mode", _one_of(ReadMode)))
        if stream is not False:
            both += [
                ("startingPosition", "starting", _position),
                ("maxBytesPerTrigger", "most_bytes", _positive),
            ]
        return both
    both += [
        ("namespace", "namespace", str),
        ("partitions", "partitions", _numbers),
        ("decode", "decode", _flag),
        ("keySchema", "key_schema", _schema),
        ("valueSchema", "value_schema", _schema),
        ("keyCodec", "key_codec", _codec),
        ("valueCodec", "value_codec", _codec),
        ("undecodable", "undecodable", _one_of(Undecodable)),
    ]
    if view == "snapshot":
        return [
            *both,
            ("keyPrefix", "prefix", _bytes),
            ("startKey", "start_key", _bytes),
            ("endKey", "end_key", _bytes),
            ("asOf", "as_of", _moment),
            ("consistency", "consistency", _one_of(Consistency)),
            ("maxReadBytesPerSec", "bytes_per_second", _positive),
        ]
    changes: Known = [
        ("startingCounters", "starting", _vector),
        ("startingTimestamp", "since", time_of),
        ("changeFormat", "form", _one_of(ChangeFormat)),
        ("includeRollbacks", "rollbacks", _flag),
        ("includeCatalog", "catalog", _flag),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
    ]
    if stream is not False:
        changes += [
            ("maxChangesPerTrigger", "most_changes", _positive),
            ("maxBytesPerTrigger", "most_bytes", _positive),
            ("initialSnapshot", "bases", _paths),
        ]
    if not stream:
        changes += [("endingCounters", "ending", _vector), ("mode", "mode", _one_of(ReadMode))]
    return [*both, *changes]


def _paths(text: str) -> tuple[str, ...]:
    """One path, or a JSON list of several."""
    if text.startswith("["):
        paths = json.loads(text)
        if not paths or not all(isinstance(path, str) for path in paths):
            raise ValueError("a list of paths is needed")
    else:
        paths = [text]
    return tuple(map(place_of_option, paths))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, separated by commas, each once")
    return names


def _numbers(text: str) -> frozenset[int]:
    """Numbers and ranges, such as ``0-15,40``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = (side.strip() for side in part.partition("-"))
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ValueError("numbers and ranges, such as 0-15,40")
        if max(len(first), len(last)) > 9 or max(int(first), int(last or 0)) >= PARTITIONS_MAX:
            raise ValueError(f"no store has more than {PARTITIONS_MAX:,} partitions")
        if int(last or first) < int(first):
            raise ValueError(f"{part.strip()} ends before it begins")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _vector(text: str) -> str:
    if text not in ("earliest", "latest") and not isinstance(json.loads(text), dict):
        raise ValueError("earliest, latest, or a JSON object of numbers by partition")
    return text


def _moment(text: str) -> str:
    """``latest``, the id of a checkpoint, a time, or a JSON object of numbers by partition."""
    if text.startswith("{"):
        return _vector(text)
    if text != "latest" and not text.isdecimal():
        time_of(text)
    return text


def _position(text: str) -> str:
    if text not in ("earliest", "latest"):
        _natural(text)
    return text


def _bytes(text: str) -> bytes:
    data = parse_bytes(text)
    return text.encode() if data is None else data


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("at least 1")
    return number


def _partitions(text: str) -> int:
    number = int(text)
    if not 1 <= number <= PARTITIONS_MAX:
        raise ValueError(f"a number from 1 to {PARTITIONS_MAX:,}")
    return number


def _codec(name: str) -> str:
    return codec_named(name).name


def _schema(text: str) -> str:
    return str(parse_type(text))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("at least 0")
    return number


def _writer(text: str) -> str:
    if not text or not text.isprintable() or len(text.encode()) > WRITER_BYTES_MAX:
        raise ValueError(f"printable text of at most {WRITER_BYTES_MAX} bytes")
    return text


def _one_of(allowed: object) -> Callable[[str], str]:
    """Return what reads one of a few words, in any case."""
    words: dict[str, str] = {word.lower(): word for word in get_args(allowed)}

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words.values()))
        return words[text.lower()]

    return read
