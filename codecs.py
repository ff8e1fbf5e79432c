"""Codecs of keys and values: the public name of ``tidelog.engine.codecs.registry``."""

from __future__ import annotations

from .engine.codecs.registry import (
    I64 as I64,
    U64 as U64,
    Bytes as Bytes,
    Codec as Codec,
    Date as Date,
    Datetime as Datetime,
    Dec as Dec,
    DecKey as DecKey,
    Float as Float,
    Json as Json,
    KeyCodec as KeyCodec,
    KeyRange as KeyRange,
    Msgpack as Msgpack,
    SingleFloat as SingleFloat,
    Str as Str,
    Timedelta as Timedelta,
    Tuple as Tuple,
    Uuid as Uuid,
    ValueCodec as ValueCodec,
    as_codec as as_codec,
    byte_prefix_range as byte_prefix_range,
    codec_named as codec_named,
    dataclass as dataclass,
)
