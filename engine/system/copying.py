"""Copies files within and between stores, byte by byte and synced.

Invariants:

- A copy shares nothing with its original: never a hard link.
- When a copy has its name in a synced directory, its bytes are durable.

Left out: which files, and in which order (``backup``, ``opening``).
"""

from __future__ import annotations

import errno

from ...wal.ports import Directory, ReadableDirectory

PIECE_BYTES = 1 << 20


def copy_file(
    source: ReadableDirectory,
    name: str,
    target: Directory,
    *,
    target_name: str | None = None,
    size: int | None = None,
) -> int:
    """Copy the first ``size`` bytes of a file (all by default), durably but for its name.

    Returns how many bytes that were.  Raises ``OSError``; also if the file is shorter.
    """
    original = source.open_read(name)
    try:
        end = original.size() if size is None else size
        copy = target.create(target_name or name)
        try:
            offset = 0
            while offset < end:
                piece = original.read(offset, min(PIECE_BYTES, end - offset))
                if not piece:
                    raise OSError(errno.EIO, f"ends at {offset} of {end} bytes", name)
                copy.write(offset, piece)
                offset += len(piece)
            copy.sync()
        finally:
            copy.close()
    finally:
        original.close()
    return end
