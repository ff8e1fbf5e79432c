"""Signals that wait for the end of a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ..shell.exits import Terminated


class Patience:
    """Lets Ctrl-C and SIGTERM wait for the end of a step, so that what was counted is there.

    The outer ``with`` changes how the signals are handled, each inner one is a step.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._interrupt: type[BaseException] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Patience:
        """Begin to handle the signals, or begin a step."""
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            for number in _INTERRUPTS:
                self._before[number] = signal.signal(number, self._note)
        self._depth += 1
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else self._note)
        if self._depth < 2:
            raise _INTERRUPTS[number]
        self._interrupt = _INTERRUPTS[number]

    def __exit__(self, *_exc: object) -> None:
        """End a step, by the interrupt that came meanwhile; or handle the signals as before."""
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt


_INTERRUPTS: dict[int, type[BaseException]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
}
