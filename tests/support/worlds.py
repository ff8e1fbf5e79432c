"""Two services in simulated worlds: an echo with clients, and stores that are killed as they write.

Usage, from the folder of the tests: python -m support.worlds echo|stores SEED

Prints the hash of what happened, which has to be the same in every process.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from tidelog.engine.api.choices import Durability
from tidelog.engine.api.database import Database
from tidelog.engine.system.environment import Stream
from tidelog.testing import World, check_store, open_with, simulated
from tidelog.testing.node import Node

PORT = 7000
HEADER_BYTES = 8
PATH = "/store"
OPTIONS: dict[str, Any] = {
    "partitions": 2,
    "segment_bytes": 64 << 10,
    "checkpoint_bytes": 32 << 10,
    "retain_bytes": 64 << 10,
    "map_size": 256 << 10,
}


class ClosedByPeerError(Exception):
    """The answer did not come whole."""


async def read_exactly(stream: Stream, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = await stream.receive(size - len(found))
        if not piece:
            raise ClosedByPeerError
        found += piece
    return bytes(found)


async def trouble(world: World, nodes: Sequence[Node], *, seconds: float) -> Counter[str]:
    """Have faults of every kind for a while, then heal the network and start who is down."""
    rng = world.random("trouble")
    done: Counter[str] = Counter()
    end = world.now() + seconds
    while world.now() < end:
        await trio.sleep(rng.uniform(0.05, 0.4))
        one, other = rng.sample(nodes, 2)
        kind = rng.choice(["cut", "heal", "reset", "half open", "kill", "kill", "restart"])
        done[kind] += 1
        match kind:
            case "cut":
                world.network.cut(one.name, other.name)
            case "heal":
                world.network.heal()
            case "reset":
                world.network.reset(one.name, other.name)
            case "half open":
                world.network.half_open(one.name, other.name)
            case "kill":
                one.kill()
            case "restart":
                await one.restart()
        for node in nodes:
            if not node.running and rng.random() < 0.5:
                await node.restart()
    world.network.heal()
    for node in nodes:
        if not node.running:
            await node.restart()
    return done


class EchoWorld:
    """A server that answers with the bytes of the question, and clients that ask none twice."""

    def __init__(self, seed: int, clients: int = 3) -> None:
        self.world = World(seed)
        self.server = self.world.add("server", self._serve)
        self.clients = [self.world.add(f"client{n}", self._ask) for n in range(clients)]
        self.nodes = [self.server, *self.clients]
        self.asked: dict[int, tuple[str, int]] = {}
        """Number of a question -> the client, and which of its starts."""
        self.served: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()
        self.failed: dict[int, str] = {}
        self.faults: Counter[str] = Counter()
        self._numbers = itertools.count()

    def run(self) -> None:
        """Faults for some seconds, then none: whoever asks then is answered."""
        self.world.run(self._scenario)

    async def _scenario(self) -> None:
        for node in self.nodes:
            node.start()
        self.faults = await trouble(self.world, self.nodes, seconds=5)
        await trio.sleep(3)
        failures, answers = len(self.failed), len(self.answered)
        await trio.sleep(3)
        assert len(self.failed) == failures, "questions failed without a fault"
        assert len(self.answered) > answers + 20, "nobody answers any more"

    async def _serve(self, node: Node) -> None:
        listener = await node.environment.network.listen((node.name, PORT))
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._answer, await listener.accept())

    async def _answer(self, stream: Stream) -> None:
        try:
            while True:
                header = await read_exactly(stream, 2 * HEADER_BYTES)
                body = await read_exactly(stream, int.from_bytes(header[HEADER_BYTES:]))
                self.served[int.from_bytes(header[:HEADER_BYTES])] += 1
                await stream.send(header + body)
        except (OSError, ClosedByPeerError):
            pass
        finally:
            stream.close()

    async def _ask(self, node: Node) -> None:
        while True:
            try:
                with trio.fail_after(1):
                    stream = await node.environment.network.connect(("server", PORT))
            except (OSError, trio.TooSlowError):
                await trio.sleep(0.1)
                continue
            try:
                await self._ask_some(node, stream)
            finally:
                stream.close()

    async def _ask_some(self, node: Node, stream: Stream) -> None:
        rng = node.environment.random
        for _ in range(rng.randint(1, 30)):
            number, body = next(self._numbers), rng.randbytes(rng.choice([0, 10, 3000, 100_000]))
            header = number.to_bytes(HEADER_BYTES) + len(body).to_bytes(HEADER_BYTES)
            self.asked[number] = (node.name, node.starts)
            try:
                with trio.fail_after(2):
                    await stream.send(header + body)
                    answer = await read_exactly(stream, len(header + body))
            except (OSError, ClosedByPeerError, trio.TooSlowError) as error:
                self.failed[number] = type(error).__name__
                return
            assert answer == header + body, "an answer to another question"
            self.answered[number] += 1

    def unknown(self) -> list[int]:
        """The questions that have neither an answer nor an error."""
        return sorted(self.asked.keys() - self.answered.keys() - self.failed.keys())


class StoreWorld:
    """Nodes with a store each, killed as they write; what was acknowledged is kept here."""

    def __init__(
        self, seed: int, *, kills: int = 12, kv: str = "memory", durability: Durability = "always"
    ) -> None:
        self.world = World(seed, kv=kv)
        self.kv = kv
        self.durability = durability
        self.kills = kills
        self.nodes = [self.world.add(f"store{n}", self._write) for n in range(3)]
        self.tried: dict[str, dict[bytes, bytes]] = {node.name: {} for node in self.nodes}
        self.acknowledged: dict[str, dict[bytes, bytes]] = {node.name: {} for node in self.nodes}
        self.opened: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def run(self) -> None:
        """Kill and restart for some seconds; at the end every disk holds a sound store."""
        logging.getLogger("tidelog").setLevel(logging.CRITICAL)  # recoveries and their warnings
        self.world.run(self._scenario)
        for node in self.nodes:
            assert not check_store(PATH, simulated(99, node.disk, kv=self.kv)), node

    async def _scenario(self) -> None:
        rng = self.world.random("kills")
        for node in self.nodes:
            node.start()
        for _ in range(self.kills):
            node = rng.choice(self.nodes)
            moment = rng.choice(["before", "inside", "after"])
            point = rng.choice([f"{moment} sync", f"{moment} checkpoint", f"{moment} open", ""])
            if point:
                node.kill_at(point, rng.randint(1, 4))
                with trio.move_on_after(1) as waiting:
                    await node.wait_ended()
                if not waiting.cancelled_caught:
                    self.ended[point] += 1
            await node.restart()
        await trio.sleep(2)

    def _open(self, node: Node) -> Database:
        db: Database = open_with(node.environment, PATH, durability=self.durability, **OPTIONS)
        return db

    async def _write(self, node: Node) -> None:
        run, rng = node.environment.run, node.environment.random
        tried, acknowledged = self.tried[node.name], self.acknowledged[node.name]
        db = await run("open", lambda: self._open(node))
        numbers = await run("read", lambda: db.map("numbers"))
        found = dict(await run("read", lambda: list(numbers.items())))
        lost = acknowledged.items() - found.items()
        assert not lost, f"{node.name} lost {sorted(lost)[:3]}"
        assert found.items() <= tried.items(), f"{node.name} has what nobody wrote"
        self.opened[node.name] += 1
        while True:
            key = b"%s %d" % (node.name.encode(), len(tried))
            value = tried[key] = rng.randbytes(rng.choice([1, 100, 3000]))
            await run("sync", partial(numbers.update, {key: value}))
            acknowledged[key] = value
            if rng.random() < 0.1:
                await run("checkpoint", db.checkpoint)


def main(kind: str, seed: str) -> None:
    """Run one world and print its hash."""
    kinds: dict[str, type[EchoWorld] | type[StoreWorld]] = {"echo": EchoWorld, "stores": StoreWorld}
    service = kinds[kind](int(seed))
    service.run()
    print(service.world.trace.hash, service.world.trace.events)


if __name__ == "__main__":
    main(*sys.argv[1:])
