"""Golden scripts of a client's decisions: events are told, and the steps that follow are shown.

A script has a first line with its point, then lines of these forms; a line that begins with ``>``
is what the machine says, and is compared.

    view DECIDED a+ b- c~       the newest view: members, present, away, or away and about to be
                                replaced by another copy; partition n is of the n-th
    get PARTITION, commit PARTITION, any      begins the call
    given PARTITION             begins a commit under an id that the user gave
    value X, failed CODE, unreached, broke, quiet, done      what has happened, at the next second
    status yes, status no       the same: a member tells its status, whether it reaches a majority
    status early                the same: not yet, but it has just started
    refused ATTEMPT             the answer that an attempt under that id was refused; 0: rolled back
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.engine.client.commits import committing, put_of
from tidelog.engine.client.routing import (
    Ask,
    Broke,
    ClientEvent,
    Cluster,
    Drop,
    Failed,
    Greet,
    Job,
    Listen,
    Pause,
    Quiet,
    StepDone,
    Steps,
    Unreached,
    Value,
    served,
)

UNTIL = 100.0


def played(script: str) -> str:
    """Return a script with what the machine says now."""
    return "\n".join(Player().lines(script.splitlines())) + "\n"


class Player:
    """One client, whose steps are shown."""

    def __init__(self) -> None:
        self.cluster = Cluster(["seed:1"])
        self.steps: Steps[Any] | None = None
        self.now = 0.0
        self.ids = iter(range(1, 99))
        self.given = False

    def lines(self, script: list[str]) -> Iterator[str]:
        for line in script:
            if line.startswith(">"):
                continue
            yield line
            if line and not line.startswith("#"):
                yield from (f"> {said}" for said in self.play(*line.split()))

    def play(self, word: str, *args: str) -> Iterator[str]:
        if word == "view":
            self.learn(*args)
        elif word == "clock":
            self.now = float(args[0])
        elif word in ("get", "commit", "given", "any"):
            self.steps = self.begun(word, *map(int, args))
            yield self.shown(None)
        else:
            self.now += 1
            yield self.shown(self.event(word, *args))

    def learn(self, decided: str, *told: str) -> None:
        members = [[name[0].encode() * 16, 1, name[1] == "+", name[0]] for name in told]
        count = len(members)
        coming = [place for place, name in enumerate(told) if name[1] == "~"]
        places = list(range(count))
        spaces = [[0, count, 0]]
        self.cluster.learn(
            [int(decided), members, spaces, [], places, [1] * count, coming, [places] * count]
        )

    def begun(self, word: str, partition: int = 0) -> Steps[Any]:
        if word in ("commit", "given"):
            commit = put_of(16, partition, b"k", b"v")
            self.given = word == "given"
            given_id = b"the id of a user" if self.given else None
            return committing(self.cluster, commit, given_id, self.new_id, UNTIL)
        about = () if word == "any" else (partition,)
        return served(self.cluster, Job(about, word, (), UNTIL))

    def new_id(self) -> bytes:
        return b"%016d" % next(self.ids)

    def event(self, word: str, code: str = "") -> ClientEvent:
        now = self.now
        match word:
            case "value":
                return Value(code if code else [7], now)
            case "status":
                return Value({"majority": code == "yes", "just_started": code == "early"}, now)
            case "failed":
                return Failed(code, "", {"partition": 0}, now)
            case "refused":
                return Failed("TL-TX-006", "refused", {"attempt": int(code)}, now)
            case "unreached":
                return Unreached("refused", now)
            case "broke":
                return Broke("reset", now)
            case "quiet":
                return Quiet(now)
        assert word == "done", word
        return StepDone(now)

    def shown(self, event: ClientEvent | None) -> str:
        assert self.steps is not None
        try:
            step = next(self.steps) if event is None else self.steps.send(event)
        except StopIteration as end:
            return f"result {end.value!r}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        match step:
            case Ask(member, "commit", arguments) if self.given:
                return f"ask {member[:1].decode()} commit, attempt {arguments[1]}"
            case Ask(member, operation, arguments):
                shown = f" {arguments[0]!r}" if operation in ("commit", "outcome") else ""
                return f"ask {member[:1].decode()} {operation}{shown}"
            case Listen(member):
                return f"listen {member[:1].decode()}"
            case Drop(member):
                return f"drop {member[:1].decode()}"
            case Greet(address):
                return f"greet {address}"
        assert isinstance(step, Pause)
        return f"pause up to {step.seconds:g} s"
