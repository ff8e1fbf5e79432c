"""Errors of the operating system in Tidelog's words: what was being done, whether space ran out.

Left out: errors of LMDB (``lmdb_file``), and what is done about an error.
"""

from __future__ import annotations

import errno

from ...affinity.errors import DiskError, DiskFullError

_PATH_HINT = "Check the path, and that its parts are directories."

PERMISSION_HINT = "Run it as the owner of the files, or where they can be written."

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), PERMISSION_HINT),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP), _PATH_HINT),
    errno.ENAMETOOLONG: "Give a shorter name.",
}
"""What to do about errors that are not the disk's, but of who asks, or of what for."""


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
            raise DiskError(text, hint=_HINTS.get(error.errno or 0)) from error
