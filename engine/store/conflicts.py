"""Says which key a transaction lost, and finds in the log to whom.

Left out: whether there is a conflict (``tx.validation``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ...affinity.errors import ConflictError, TidelogError
from ..data.stored import shown_key, split_key, version_of
from .store_files import StoreFiles


class Conflicts:
    """Makes the errors of one open store; ``name_of`` is what to call a namespace, by its id."""

    def __init__(self, files: StoreFiles, name_of: Callable[[int], str]) -> None:
        self._files = files
        self._name_of = name_of

    def error(
        self, full_key: bytes, winner: bytes | None, stored: bytes | None = None
    ) -> ConflictError:
        """Return the error for a key that was changed, under the mutex.

        ``winner`` is the id of the transaction that changed it; ``stored``, if it is given, is the
        value that an unknown one wrote.
        """
        partition, number, key = split_key(full_key)
        name = self._name_of(number)
        return ConflictError(
            f"key {shown_key(key)} of {name!r} was changed by another transaction",
            namespace=name,
            key=key,
            winner=winner if stored is None else self._search(partition, stored),
        )

    def _search(self, partition: int, stored: bytes) -> Callable[[], bytes | None]:
        """Return a function that finds in the newest part of the log who wrote a value.

        It is for whoever reads the error to call, when the mutex has been given up.
        """
        _, counter, _ = version_of(stored)
        writer = self._files.writer
        segment, end = writer.segment, writer.position
        held = weakref.ref(self._files.keeper)

        def search() -> bytes | None:
            keeper = held()
            if keeper is None:
                return None
            try:
                return keeper.writer_of(partition, counter, segment, end)
            except (OSError, TidelogError):
                return None  # it is a courtesy

        return search
