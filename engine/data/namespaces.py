"""A namespace as maps use it: its id, its codecs, and the prefix of its keys in each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex, cast

from ...affinity.errors import (
    CodecError,
    CorruptDataError,
    KeyTooLargeError,
    NotFoundError,
    UsageError,
    ValueTooLargeError,
)
from ...affinity.partitions import Space
from ...wal.records import NamespaceRecord
from ..codecs.registry import Bytes, Codec, ValueCodec, as_codec, codec_named, is_built_in
from .stored import KEY_BYTES_MAX, PENDING, PREFIX_SIZE, pack_prefix, shown_key, split_key

NAME_BYTES_MAX = 255
_NEVER = 1 << 63
NAMES_SHOWN_MAX = 20
"""Maps that an error names."""
VALUE_BYTES_MAX = 32 << 20
OUTCOMES = 1
"""The internal namespace of the outcomes of transactions whose id the caller gave."""
LEDGER = 2
"""The internal namespace that tells which batches of whom are committed."""
LOSSES = 3
"""The internal namespace of what a cluster has lost."""
INTERNAL = frozenset((OUTCOMES, LEDGER, LOSSES, PENDING))


class Home:
    """One opening of a store: what the namespaces of its maps belong to."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


def not_copied(self: object, _protocol: SupportsIndex) -> NoReturn:
    """Refuse to copy or pickle what belongs to an opening, as ``__reduce_ex__``.

    A copy would close the store, or end the transaction, under the original.
    """
    raise UsageError(
        f"a {type(self).__name__} cannot be copied or pickled: it belongs to an open store",
        hint="Share the one that is there; another process opens the store by its path.",
    )


class Namespace:
    """A named map: shared by all handles, in transactions and snapshots too."""

    __slots__ = ("alive", "built_in", "decode_key", "decode_value", "encode_key", "encode_value",
                 "home", "id", "key_codec", "name", "plain", "prefixes", "since", "space",
                 "until", "value_codec")  # fmt: skip

    def __init__(
        self,
        record: NamespaceRecord,
        key: Codec[Any],
        value: Codec[Any],
        space: Space,
        home: Home,
    ) -> None:
        self.home = home
        self.id = record.id
        self.name = record.name
        self.key_codec = key
        self.value_codec = value
        self.encode_key = _limited(key, KEY_BYTES_MAX, _key_too_large)
        self.decode_key = key.decode
        self.encode_value = _limited(value, VALUE_BYTES_MAX, _value_too_large)
        self.decode_value = value.decode
        self.plain = key is Bytes and value is Bytes
        self.space = space
        """The partitions among which its keys are spread."""
        self.prefixes = [pack_prefix(partition, record.id) for partition in range(space.end)]
        """The prefix in each partition of its space, by the partition's number."""
        self.alive = True
        self.built_in = is_built_in(value)
        """Whether the values have a codec that comes with Tidelog."""
        self.since = 0
        """The position of the log below which no snapshot may show it: rows were on their way."""
        self.until = _NEVER
        """The position of the log from which on no snapshot may show it: it was dropped."""

    @property
    def codec_names(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Name and version of the codec of its keys, and of that of its values."""
        key, value = self.key_codec, self.value_codec
        return (key.name, key.version), (value.name, value.version)

    def drop(self, position: int) -> None:
        """Be gone, for all handles, from a position of the log on."""
        self.until = position
        self.alive = False

    def check_encoded(self, key: bytes, value: bytes | None) -> None:
        """Raise if bytes from outside are not what the codecs make; a delete has no value.

        That is ``KeyTooLargeError``, ``ValueTooLargeError`` or ``CodecError``.
        """
        if len(key) > KEY_BYTES_MAX:
            raise _key_too_large(len(key))
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise _value_too_large(len(value))
        if self.plain:
            return
        try:
            self.decode_key(key)
            if value is not None:
                self.decode_value(value)
        except Exception as error:
            raise CodecError(
                f"key {key!r} of {self.name!r} does not decode as {self.key_codec.name}, or its "
                f"value not as {self.value_codec.name}: {error}",
                hint="Write keys and values as the codecs of the map encode them.",
            ) from error

    def check_alive(self) -> None:
        """Raise ``NotFoundError`` if the map has been dropped."""
        if not self.alive:
            raise NotFoundError(
                f"the map {self.name!r} was dropped", hint="Ask `db.map` for a new one."
            )


def namespace_at(home: Home, mapping: object) -> Namespace:
    """Return the namespace of a map of this opening of a store; ``UsageError`` for all else.

    A map of another store would name another namespace here, by its number.
    """
    namespace = getattr(mapping, "_namespace", None)
    if getattr(namespace, "home", None) is home:
        return cast(Namespace, namespace)
    raise no_map_of(home, mapping, getattr(namespace, "home", None))


def no_map_of(here: Home, mapping: Any, home: Home | None) -> UsageError:
    """Return the error for a map that belongs to another home, or for what is not a map at all."""
    name = repr(mapping if isinstance(mapping, str) else getattr(mapping, "name", "name"))
    if home is None:
        return UsageError(
            f"{mapping!r} is not a map of this store",
            hint=f"Give the map itself, as in `tx[db.map({name})]`.",
        )
    other = "another opening of this store" if home.path == here.path else f"the store {home.path}"
    return UsageError(
        f"the map {name} belongs to {other}, this is {here.path}",
        hint=f"Use the map of this one: `db.map({name})`.",
    )


def named(error: CorruptDataError, namespace: Namespace) -> CorruptDataError:
    """Return an error about a stored value with map and key as the user knows them.

    What is about a value of another namespace, or none, comes back as it is.
    """
    if error.map is not None or error.full_key is None or len(error.full_key) < PREFIX_SIZE:
        return error
    partition, number, key = split_key(error.full_key)
    if number != namespace.id:
        return error
    what = str(error).partition(":")[0]
    shown = decoded_key(namespace.key_codec, key)
    found = CorruptDataError(
        f"{what}: map {namespace.name!r}, key {shown} (partition {partition})", hint=error.hint
    )
    found.full_key, found.map, found.key = error.full_key, namespace.name, key
    return found


def decoded_key(codec: Codec[Any], key: bytes) -> str:
    """Return an encoded key as errors show it: decoded if that can be done."""
    try:
        return repr(codec.decode(key))
    except CodecError:
        return shown_key(key)


def ledger(space: Space, home: Home) -> Namespace:
    """Return the namespace of the ledger, which no record tells of."""
    record = NamespaceRecord(
        id=LEDGER,
        name="ledger",
        key_codec=Bytes.name,
        key_version=Bytes.version,
        value_codec=Bytes.name,
        value_version=Bytes.version,
    )
    return Namespace(record, Bytes, Bytes, space, home)


def bound(
    record: NamespaceRecord,
    space: Space,
    home: Home,
    given: Iterable[ValueCodec[Any] | None],
) -> Namespace:
    """Return a recorded namespace with its codecs, which are among ``given`` or known by name."""
    codecs = [codec for codec in given if codec is not None]
    return Namespace(
        record,
        codec_named(record.key_codec, record.key_version, given=codecs),
        codec_named(record.value_codec, record.value_version, given=codecs),
        space,
        home,
    )


def check_codecs(
    namespace: Namespace, key: ValueCodec[Any] | None, value: ValueCodec[Any] | None
) -> None:
    """Raise ``CodecError`` if codecs are given that are not those of the namespace."""
    for asked, recorded in ((key, namespace.key_codec), (value, namespace.value_codec)):
        if asked is None:
            continue
        given = as_codec(asked)
        if (given.name, given.version) != (recorded.name, recorded.version):
            raise CodecError(
                f"the map {namespace.name!r} has codec {recorded.name} {recorded.version}, "
                f"not {given.name} {given.version}",
                hint="Leave the codecs out, or use the recorded ones.",
            )


def no_map(name: str, names: Sequence[str]) -> NotFoundError:
    """Return the error for a map that is not among those of the store, naming some of them."""
    some = ", ".join(names[:NAMES_SHOWN_MAX]) + " and others" * (len(names) > NAMES_SHOWN_MAX)
    return NotFoundError(
        f"there is no map {name!r}",
        hint=f"The store has these maps: {some}." if names else "The store has no maps yet.",
    )


def check_name(name: object) -> str:
    """Return the name of a map, or raise ``UsageError`` for what cannot be one."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{name!r} is not a name for a map", hint="Use printable text.")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"the name of a map has at most {NAME_BYTES_MAX} bytes, not {len(name.encode())}"
        )
    return name


def _limited(
    codec: Codec[Any], limit: int, too_large: Callable[[int], Exception]
) -> Callable[[Any], bytes]:
    """Return the codec's ``encode`` with a limit on the bytes it may make."""
    encode = codec.encode

    def limited(value: Any) -> bytes:
        data = encode(value)
        if len(data) > limit:
            raise too_large(len(data))
        return data

    return limited


def _key_too_large(size: int) -> KeyTooLargeError:
    return KeyTooLargeError(f"a key of {size} bytes, {KEY_BYTES_MAX} are allowed")


def _value_too_large(size: int) -> ValueTooLargeError:
    return ValueTooLargeError(f"a value of {size:,} bytes, {VALUE_BYTES_MAX:,} are allowed")
