"""Stores and segments marked with features, as another version or a cluster's member would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crc32c import crc32c

from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.format import HEADER_SIZE, segment_name
from tidelog.wal.segments import segment_numbers


def fields_of(store: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((store / "manifest").read_bytes().splitlines()[0])
    return fields


def mark_manifest(store: Path, **changes: Any) -> None:
    line = json.dumps({**fields_of(store), **changes}).encode()
    (store / "manifest").write_bytes(line + b"\n%08x\n" % crc32c(line))


def mark_segment(store: Path, **masks: int) -> None:
    number = segment_numbers(ReadOnlyDirectory(store / "wal"))[-1]
    file = store / "wal" / segment_name(number)
    data = bytearray(file.read_bytes())
    for name, mask in masks.items():
        place = {"compatible": 12, "read_only": 16, "required": 20}[name]
        data[place : place + 4] = mask.to_bytes(4, "little")
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32c(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    file.write_bytes(data)
