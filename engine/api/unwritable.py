"""The half of a session that writes, for what can only be read: every write is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from ..data.decisions import Decide
from ..data.namespaces import Namespace
from ..data.scan import Pair
from .maps import Map

T = TypeVar("T")


class Unwritable(ABC):
    """A session that refuses to write; the one that inherits this says why."""

    @abstractmethod
    def refuse(self) -> NoReturn:
        """Raise ``ReadOnlyError``."""

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that refuses to write."""

        def refuse(_key: bytes, _value: bytes | None) -> NoReturn:
            self.refuse()

        return refuse

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Refuse to write."""
        self.refuse()

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that refuses to write."""

        def refuse(_key: bytes, _decide: Decide) -> NoReturn:
            self.refuse()

        return refuse

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Refuse to write."""
        self.refuse()

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Refuse to write."""
        self.refuse()
