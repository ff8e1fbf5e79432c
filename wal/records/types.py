"""The numbers of the kinds of record, and the header that each record has.

A record is ``length u32, type u8, flags u8`` (big endian, as msgpack is), then its body.
"""

from __future__ import annotations

import struct
from enum import IntEnum


class RecordType(IntEnum):
    """The number of each kind of record; numbers are never reused."""

    TX = 1
    PREPARE = 2
    COMMIT = 3
    ROLLBACK = 4
    SETTLE = 5
    OPEN = 6
    SUPPLIED = 7
    CLEAR = 8
    CHECKPOINT = 9
    STATE = 10
    NAMESPACE = 11
    DROP_NAMESPACE = 12
    EPOCH = 13
    INGEST = 14
    COMMIT_UPTO = 15
    IDLE = 16
    ADMIT = 17
    SEAL = 18
    OUTCOMES = 19


MAY_BE_IGNORED = 1
RECORD_OVERHEAD = 6

_HEADER = struct.Struct(">IBB")
pack_record_header = _HEADER.pack
unpack_record_header = _HEADER.unpack_from
