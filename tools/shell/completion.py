"""Completion of command lines by the shell: what click has, with names of any characters in bash.

Bash cuts a word at colons and gives it as it was typed, with quotes and backslashes, and takes the
answer as it is.  So the answer is what was typed with the rest of the name behind it, quoted as the
word was begun.  zsh and fish quote by themselves.

Invariants:

- A completion that fails tells nothing: the scripts show nothing of stderr.

Left out: what there is to complete (the commands, ``tools.wal.completion``).
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

_BASH = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_UNQUOTED = re.compile(r"([^\w@%+=:,./~^{}-]|^~|^[{}^])", re.ASCII)
_IN_DOUBLE = re.compile(r'(["$`\\])')


class BashWord(NamedTuple):
    """A word of a command line: what it stands for, and the quote that is open at its end."""

    text: str
    quote: str


def bash_words(line: str) -> list[BashWord]:
    """Return the words of the beginning of a command line; the last one may be empty."""
    words, text, quote, begun = list[BashWord](), "", "", False
    marks = iter(line)
    for mark in marks:
        if quote:
            if mark == quote:
                quote = ""
            elif mark == "\\" and quote == '"':
                after = next(marks, "")
                text += after if after and after in '"$`\\' else mark + after
            else:
                text += mark
        elif mark in "'\"":
            quote, begun = mark, True
        elif mark == "\\":
            text, begun = text + next(marks, ""), True
        elif mark.isspace():
            if begun:
                words.append(BashWord(text, ""))
            text, begun = "", False
        else:
            text, begun = text + mark, True
    return [*words, BashWord(text, quote)]


def bash_quoted(text: str, quote: str) -> str:
    """Return text as it is written behind the beginning of a word."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote:
        # An interactive bash looks for earlier commands there, too, and keeps a backslash.
        return _IN_DOUBLE.sub(r"\\\1", text).replace("!", "\"'!'\"")
    return _UNQUOTED.sub(r"\\\1", text)


class _Bash(BashComplete):
    source_template = _BASH

    def source(self) -> str:
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        *words, last = bash_words(os.environ["COMP_LINE"])
        return [word.text for word in words[1:]], last.text

    def format_completion(self, item: CompletionItem[Any]) -> str:
        if item.type != "plain":
            return f"{item.type},"
        typed = bash_words(os.environ["COMP_LINE"])[-1]
        begun = typed.text.partition("=")[2] if typed.text.startswith("--") else ""
        begun = begun or typed.text
        value = str(item.value)
        if not value.startswith(begun):
            return f"plain,{bash_quoted(value, typed.quote)}"
        return f"plain,{os.environ['COMP_WORD']}{bash_quoted(value[len(begun) :], typed.quote)}"


class _Zsh(ZshComplete):
    source_template = ZshComplete.source_template.replace(
        "zsh_complete %(prog_name)s", "zsh_complete %(prog_name)s 2>/dev/null"
    )


class _Fish(FishComplete):
    # A name may have commas.
    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split -m 1 ","'
    ).replace("(commandline -t) %(prog_name)s", "(commandline -t) %(prog_name)s 2>/dev/null")


CLASSES: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
"""The shells that are known."""


def prepare_completion() -> None:
    """Let click answer the shell that asks for completions."""
    for kind in CLASSES.values():
        add_completion_class(kind)
