"""What a handle is once it is pickled: the path of its store, and how that was opened.

On the way back it is the store that this process has open under that path, or the store is opened
as it was.  Only stores that ``tidelog.open`` opened have such a way: no other process finds what
is in memory or in an environment of somebody's own.

Invariants:

- A handle for reading comes back as one for reading, a handle for writing as one for writing.
- Nothing here keeps a store open.

Left out: the way back itself (``open``), and handles that are never pickled (``namespaces``).
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from ...affinity.errors import UsageError


class WayBack(NamedTuple):
    """How a store is found again: functions that pickle knows by their names, and arguments."""

    database: Callable[..., Any]
    mapping: Callable[..., Any]
    path: str
    read_only: bool
    options: dict[str, Any]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What is pickled of it."""
        return self.path, self.read_only, self.options


class Reopenable(ABC):
    """A session that handles find by a path; ``face`` returns what its user holds, or None."""

    path: str
    opened_by: WayBack | None = None
    face: Callable[[], Any] = staticmethod(lambda: None)
    warns = True
    """Whether it warns if it is lost: what unpickling has opened was never anybody's to close."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise unless the store is open in this process."""

    def found_by(self, way: WayBack) -> None:
        """Let pickled handles of this store find it in this process."""
        self.opened_by = way
        _opened[os.path.realpath(way.path)] = self

    def way(self) -> WayBack:
        """Return how another process finds this store; ``UsageError`` if none can."""
        self.check_open()
        if self.opened_by is None:
            raise UsageError(
                f"handles of {self.path} cannot be pickled: no other process can open that store",
                hint="Pickle handles of stores that `tidelog.open` has opened by their path.",
            )
        if _opened.get(os.path.realpath(self.opened_by.path)) is not self:
            raise UsageError(
                f"handles of {self.path} cannot be pickled: another store is at that path by now",
                hint="Open the store where it is now.",
            )
        return self.opened_by


_opened: weakref.WeakValueDictionary[str, Reopenable] = weakref.WeakValueDictionary()


def opened_at(path: str, read_only: bool) -> Reopenable | None:
    """Return the store at a path if this process has it open in this way."""
    session = _opened.get(os.path.realpath(path))
    if session is None or session.opened_by is None or session.opened_by.read_only != read_only:
        return None
    try:
        session.check_open()
    except UsageError:  # closed, or left behind by a fork
        return None
    return session


def pickled(self: Any, _protocol: object) -> tuple[Any, ...]:
    """Pickle a database as the way to it, as ``__reduce_ex__``."""
    way: WayBack = self._session.way()
    return way.database, way.arguments


def not_pickled(_self: object) -> NoReturn:
    """Refuse to pickle a map that goes with a transaction or a snapshot, as ``way``."""
    raise UsageError(
        "a map of a transaction or a snapshot cannot be copied or pickled: it ends with that",
        hint="Pickle the map of the store, as `db.map` returns it.",
    )


def shared(self: object, _memo: object = None) -> NoReturn:
    """Refuse to copy a handle that may be pickled, as ``__copy__`` and ``__deepcopy__``."""
    raise UsageError(
        f"a {type(self).__name__} cannot be copied: both would be the same open store",
        hint="Share the handle; `dict(m)` copies what a map holds.",
    )
