"""Raises an exception at a chosen line of the package, as a signal does in the main thread.

CPython looks for signals behind calls, at jumps backwards and at the begin of a function.  At two
places a line begins where no signal can ever come, and where an exception would go past what has
to be undone: the end of a ``with`` block, as the call of ``__exit__`` follows without a look, and
the word ``try``, which does nothing and which no handler covers.  They are left out here, all other
lines are tried.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tidelog

ROOT = str(Path(tidelog.__file__).parent) + "/"
FOLDERS = tuple(ROOT + name for name in ("affinity/", "wal/", "tx/", "checkpoints/", "engine/"))

Line = tuple[str, int]
"""(file within the package, line)."""


class Interrupt(BaseException):
    """What the handler of a signal raised."""


class Tracer:
    """Counts the lines of the package that this thread begins; raises at one of them.

    ``at`` is the line and how many times it is passed before.  ``where`` tells where that was;
    it stays empty if the line was not met so often.
    """

    def __init__(self, at: tuple[Line, int] | None = None) -> None:
        self.lines: Counter[Line] = Counter()
        self.where = ""
        self._wanted: Line | None = None
        self._left = 0
        if at is not None:
            self._wanted, self._left = at
        self._places: dict[CodeType, frozenset[int]] = {}

    def run(self, work: Callable[[], object]) -> None:
        """Do some work under this tracer."""
        before = sys.gettrace()
        # CPython borrows the function while it prepares a call of it; a finalizer that runs then,
        # and is interrupted, would free it by its `settrace(None)`.
        traced = self._call
        sys.settrace(traced)
        try:
            work()
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        if self._wanted is not None and frame.f_code.co_filename != ROOT + self._wanted[0]:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event != "line" or self._spared(frame):
            return self._line
        line = (frame.f_code.co_filename[len(ROOT) :], frame.f_lineno)
        if self._wanted is None:
            self.lines[line] += 1
        elif line == self._wanted:
            if self._left == 0 and not self.where:
                self.where = f"{line[0]}:{line[1]} in {frame.f_code.co_name}"
                sys.settrace(None)  # the rest is quicker without
                raise Interrupt
            self._left -= 1
        return self._line

    def _spared(self, frame: FrameType) -> bool:
        places = self._places.get(frame.f_code)
        if places is None:
            places = self._places[frame.f_code] = _without_a_look(frame.f_code)
        return frame.f_lasti in places


def _without_a_look(code: CodeType) -> frozenset[int]:
    """Return where ``try`` stands, and where a ``with`` block ends, in either way."""
    found = set()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL")]
    for place, step in enumerate(steps):
        names = [s.opname for s in steps[place : place + 2]]
        if step.opname == "NOP" or names == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
            found.add(step.offset)
        # With a value to return, or out of a loop, the stack is put in order first.
        call = place
        while call < len(steps) and steps[call].opname in ("SWAP", "POP_TOP", "NOP"):
            call += 1
        ahead = steps[call : call + 4]
        names = [s.opname for s in ahead]
        if names == ["LOAD_CONST"] * 3 + ["CALL"] and all(s.argval is None for s in ahead[:3]):
            found.add(step.offset)
    return frozenset(found)
