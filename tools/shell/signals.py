"""What Ctrl-C and SIGTERM do to the command ``tidelog``.

While modules are imported and the command line is read nothing has begun that would have to be
ended in order: a signal ends the process at once, without a word.  From the first line of a
command on it is an exception, which takes away what the command has made by half.

This module imports nothing but ``os`` and ``signal``, so that it is there before the rest comes
(``entry``).
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # checkers take it as true; `typing` is not imported
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def end_at_once() -> None:
    """Let Ctrl-C and SIGTERM end the process with 130 and 143, unless they are handled already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def end_in_order() -> None:
    """Let them be exceptions from now on; a second SIGTERM ends the process at once."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _leave:
        signal.signal(signal.SIGTERM, _terminate)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    from .exits import Terminated

    signal.signal(number, signal.SIG_DFL)
    raise Terminated
