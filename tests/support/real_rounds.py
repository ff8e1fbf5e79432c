"""Rounds of faults on clusters of three real processes with two backups, under load.

A campaign is made of *lives*, each of a new cluster, some rounds, and a kill of all members at its
end, which are started again.  Every key is read before and behind that.

    python -m support.real_rounds SEED FOLDER [LIVES [ROUNDS]]

Invariants:

- A seed decides which faults come and for how long, and to whom but for who has copies still;
  what runs meanwhile is up to the machine.
- A fault that leaves a majority, and of each partition a copy of the set, is not ended before every
  partition has answered reads and writes again.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from uuid import UUID

import trio

from .real_links import CLIENTS
from .real_load import Load, Met
from .real_pinned import Pinned
from .real_processes import NAMES, PATIENCE_S, PROGRAM, RealCluster, real_cluster

LOOK_S = 0.05
STORY_S = 0.5
"""Seconds between two looks at what is decided."""
HOPE_S = 12.0
"""Seconds for which a cut that need not end by itself is waited for."""
SHORT_S = (0.2, 0.9)
"""A pause that no lease, and no patience of the others, ends in."""
LONG_S = (1.6, 4.0)
FAULTS = (
    "kill", "kill two", "kill all", "kill as it starts", "pause short", "pause long", "pause all",
    "pause and kill", "cut", "cut and kill", "cut what it says", "cut what it hears", "cut two",
    "cut a client", "break again and again",
)  # fmt: skip
BAD_WORDS = ("Traceback", "node.copy_lacks", "lacks what", "request_failed", "AssertionError")


@dataclass(slots=True)
class Round:
    """What a round was, and what was seen in it."""

    fault: str
    victims: tuple[str, ...]
    seconds: float = 0.0
    away_s: float = 0.0
    answered: int = 0
    met: list[Met] = field(default_factory=list)
    served: bool = True
    """Whether everything was served again before the fault ended, if that was waited for."""
    stuck: bool = False
    """Whether too few members, or no copy of some partition, were left."""


class Life:
    """One cluster and its rounds."""

    def __init__(self, cluster: RealCluster, load: Load, chance: random.Random) -> None:
        self.rounds: list[Round] = []
        self._cluster = cluster
        self._links = cluster.links
        self._load = load
        self._chance = chance
        self._cut_off: set[str] = set()
        """Members that the others do not reach, or that do not reach them."""

    async def go_through(self, faults: Iterable[str]) -> None:
        """Let faults come, one after the other; behind each all is healed and served."""
        await self._served(PATIENCE_S)
        for fault in faults:
            victims = await self._victims()
            this = Round(fault, (victims[0],))
            self.rounds.append(this)
            began, met, answered = time.monotonic(), len(self._load.met), len(self._load.answered)
            await self._cause(this, victims)
            assert await self._served(PATIENCE_S), f"not served again behind {this}"
            end = time.monotonic()
            this.seconds = end - began
            this.away_s = self._load.away_s(began, end)
            this.met = self._load.met[met:]
            this.answered = len(self._load.answered) - answered
            print(
                f"  {this.fault:22} {','.join(this.victims):9} {this.seconds:6.2f} s, "
                f"away {this.away_s:5.2f} s, {this.answered} calls answered, "
                f"{len(this.met)} errors{', nobody left' * this.stuck}"
                f"{'' if this.served else ', not served meanwhile'}",
                flush=True,
            )

    async def _victims(self) -> list[str]:
        """All members in an order of chance, those with copies more often first."""
        stories = await self._cluster.stories()
        names = self._chance.sample(NAMES, len(NAMES))
        if self._chance.random() < 0.7:
            names.sort(key=lambda name: not any(name in story.in_sync for story in stories))
        return names

    async def _cause(self, this: Round, victims: Sequence[str]) -> None:
        cluster, links, chance = self._cluster, self._links, self._chance
        one, other, third = victims
        rest = (other, third)
        short, long = chance.uniform(*SHORT_S), chance.uniform(*LONG_S)
        late, coin = chance.random() < 0.5, chance.random() < 0.5
        match this.fault:
            case "kill":
                await cluster.kill(one)
                await self._goes_on(this)
                await cluster.start(one)
            case "kill two":
                this.victims = one, other
                await cluster.kill(one, other)
                await trio.sleep(short)
                await cluster.start(other)
                await self._goes_on(this)
                await cluster.start(one)
            case "kill all":
                this.victims = NAMES
                await cluster.kill(*NAMES)
                await cluster.start(*victims)
            case "kill as it starts":
                await cluster.kill(one)
                await cluster.start(one)
                await trio.sleep(short)
                await cluster.kill(one)
                await self._goes_on(this)
                await cluster.start(one)
            case "pause short":
                cluster.pause(one)
                await trio.sleep(short)
                cluster.wake(one)
            case "pause long":
                cluster.pause(one)
                await self._goes_on(this)
                await trio.sleep(long)
                cluster.wake(one)
            case "pause all":
                this.victims = NAMES
                cluster.pause(*victims)
                await trio.sleep(long)
                for name in chance.sample(NAMES, len(NAMES)):
                    cluster.wake(name)
                    await trio.sleep(short * coin)
            case "pause and kill":
                this.victims = one, other
                cluster.pause(one)
                await self._goes_on(this)
                cluster.wake(one)
                await trio.sleep(short * coin)
                await self._killed(this, other, long)
            case "cut" | "cut and kill":
                hosts = (*rest, *CLIENTS) if coin else rest
                self._cut(one, [*_ways([one], hosts), *_ways(hosts, [one])])
                await self._goes_on(this)
                await trio.sleep(short)
                self._heal(late=late)
                if this.fault == "cut and kill":
                    this.victims = one, other
                    await trio.sleep(short * coin)
                    await self._killed(this, other, long)
            case "cut what it says" | "cut what it hears":
                ways = _ways([one], (*rest, *CLIENTS) if coin else rest)
                if this.fault == "cut what it hears":
                    ways = [(dst, src) for src, dst in ways]
                self._cut(one, ways)
                await self._goes_on(this, HOPE_S)
                self._heal(late=late)
            case "cut two":
                this.victims = one, other
                self._cut(one, [(one, other), (other, one)][: 2 - coin])
                await self._goes_on(this, HOPE_S)
                self._heal(late=late)
            case "cut a client":
                this.victims = "c0", one
                self._links.cut([("c0", one), (one, "c0")][: 2 - coin])
                await trio.sleep(long)
                self._heal(late=late)
            case _:
                for _ in range(chance.randint(3, 12)):
                    links.reset(one)
                    await trio.sleep(short / 4)

    async def _killed(self, this: Round, name: str, seconds: float) -> None:
        await self._cluster.kill(name)
        this.stuck |= not await self._can_be()
        await trio.sleep(seconds)
        await self._cluster.start(name)

    def _cut(self, name: str, ways: Iterable[tuple[str, str]]) -> None:
        self._cut_off.add(name)
        self._links.cut(ways)

    def _heal(self, *, late: bool) -> None:
        self._cut_off.clear()
        self._links.heal(late=late)

    # -------------------------------------------------------------- waiting

    async def _goes_on(self, this: Round, seconds: float = PATIENCE_S) -> None:
        """Wait until everything is served in spite of the fault, if it can be.

        With ``seconds`` below the most it is only noted if it is not.
        """
        this.served = await self._served(seconds, this)
        assert this.served or seconds < PATIENCE_S, f"not served during {this}"

    async def _served(self, seconds: float, despite: Round | None = None) -> bool:
        """Wait until every partition answers; tell whether it did in time.

        During a round wait no longer than until no copy of some partition's set can.
        """
        moment = time.monotonic()
        looked = moment
        while len(self._load.served_since(moment)) < 8:
            now = time.monotonic()
            if now - moment > seconds:
                return False
            if despite and now - looked > STORY_S:
                if not await self._can_be():
                    despite.stuck = True
                    return True
                looked = time.monotonic()
            await trio.sleep(LOOK_S)
        return True

    async def _can_be(self) -> bool:
        able = self._cluster.able() - self._cut_off
        if len(able) <= len(NAMES) // 2:
            return False
        return all(story.in_sync & able for story in await self._cluster.stories())


def _ways(sources: Iterable[str], targets: Iterable[str]) -> list[tuple[str, str]]:
    return [(source, target) for source in sources for target in targets]


# ------------------------------------------------------------------ a life, a campaign


async def live(folder: Path, seed: str, faults: Sequence[str], program: Sequence[str]) -> Life:
    """Live through the rounds of one cluster, and assert what has to hold behind them."""
    cluster_id = UUID(int=random.Random(seed).getrandbits(128))
    async with real_cluster(folder, cluster_id, program) as cluster:
        pinned = [
            Pinned(name, cluster.front(name), "registers", writes=writes)
            for name in NAMES
            for writes in (False, True)
        ]
        load = Load(cluster.address, pinned, random.Random(f"{seed}:load"))
        life = Life(cluster, load, random.Random(f"{seed}:life"))
        try:
            async with load.running():
                with trio.fail_after(PATIENCE_S):  # who is killed first serves nothing any more
                    while not all(one.answered for one in pinned):
                        await trio.sleep(LOOK_S)
                await life.go_through(faults)
            await load.read_back("reader")
            await cluster.kill(*NAMES)
            await cluster.start(*NAMES)
            await cluster.wait_until_up()
            await load.read_back("reader behind the end")
            await load.judge_transactions()
            await cluster.end()
        finally:
            load.write(folder)
        await trio.to_thread.run_sync(load.judge)
        for name in NAMES:
            bad = [line for line in cluster.log_lines(name) if any(w in line for w in BAD_WORDS)]
            assert not bad, f"{name} has told: {bad[:5]}"
        return life


def dealt(seed: int, lives: int, rounds: int) -> list[list[str]]:
    """Faults for each round of some lives, each as often as the others, in an order of chance."""
    chance = random.Random(f"{seed}:faults")
    faults: list[str] = []
    while len(faults) < lives * rounds:
        faults += chance.sample(FAULTS, len(FAULTS))
    return [faults[life * rounds : (life + 1) * rounds] for life in range(lives)]


def run_rounds(
    folder: Path, seed: int, lives: Iterable[Sequence[str]], program: Sequence[str] = PROGRAM
) -> list[Round]:
    """Run a campaign, print what was seen, and return all its rounds."""
    found: list[Round] = []
    for number, faults in enumerate(lives):
        print(f"seed {seed}, life {number}:", flush=True)
        life = trio.run(live, folder / f"life{number}", f"{seed}:{number}", faults, program)
        found += life.rounds
    print(table(found))
    print(early(found))
    return found


def table(rounds: Iterable[Round]) -> str:
    """Return what was seen, by kind of fault: how long a partition was away, and the errors.

    Rounds in which nobody was left to serve have lines of their own.
    """
    kinds: dict[tuple[bool, str], list[Round]] = defaultdict(list)
    for one in rounds:
        kinds[one.stuck, one.fault].append(one)
    lines = [f"{'fault':34} rounds  away s: median    most   answered  errors  early"]
    for stuck, fault in sorted(kinds, key=lambda kind: (kind[0], FAULTS.index(kind[1]))):
        some = kinds[stuck, fault]
        away = [one.away_s for one in some]
        met = [error for one in some for error in one.met]
        lines.append(
            f"{fault + ', nobody left' * stuck:34} {len(some):6} {median(away):15.2f} "
            f"{max(away):7.2f} {sum(one.answered for one in some):10} {len(met):7} "
            f"{sum(error.early for error in met):6}"
        )
    return "\n".join(lines)


def early(rounds: Iterable[Round]) -> str:
    """Return the errors of clients that had time to try on, by kind, with one of each."""
    found: dict[tuple[str, str], list[Met]] = defaultdict(list)
    for one in rounds:
        for error in one.met:
            if error.early:
                kind = one.fault + ", nobody left" * one.stuck
                found[kind, type(error.error).__name__].append(error)
    return "\n".join(
        f"{len(errors):5} in {kind!r}: {errors[0]}" for (kind, _), errors in found.items()
    )


if __name__ == "__main__":
    lives_and_rounds = [int(word) for word in sys.argv[3:]] or [10, 4]
    run_rounds(Path(sys.argv[2]), int(sys.argv[1]), dealt(int(sys.argv[1]), *lives_and_rounds))
