"""Errors of the operating system in Tidelog's words: what was being done, whether space ran out.

Left out: errors of LMDB (``lmdb_file``), and what is done about an error.
"""

from __future__ import annotations

import errno

from ...affinity.errors import DiskError, DiskFullError

PERMISSION_HINT = "Run it as the owner of the files, or where they can be written."

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def lacks_space(error: OSError) -> bool:
    """Tell whether a write failed because it found no space: on a disk, in a quota, in a limit."""
    return error.errno in _NO_SPACE


class translated_disk:  # noqa: N801  # used as a function in `with`
    """Turn ``OSError`` into ``DiskError`` or ``DiskFullError``; says what was being done."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            text = f"{self._what} failed: {error}"
            if lacks_space(error):
                raise DiskFullError(text) from error
            forbidden = error.errno in _FORBIDDEN
            raise DiskError(text, hint=PERMISSION_HINT if forbidden else None) from error
