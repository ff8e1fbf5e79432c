"""How few new copies there could be at all: a minimum-cost flow, slow and obvious.

The twin of ``tidelog.affinity.placing``: it knows nothing of chains, of quotas chosen beforehand or
of rendezvous hashing.  One unit of flow is one copy: from its row, over its zone in that row, to
its member, and on to the sink.  A copy costs one where its member did not hold it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Node = tuple[object, ...]
NEVER = 10**9
MUST = -1000
"""What a copy brings that a member must have: more than all others together cost."""


@dataclass
class Edge:
    """Room for some units of flow, each at a cost; ``back`` is the way to take them back."""

    to: Node
    room: int
    cost: int
    back: Edge | None = None


@dataclass
class Network:
    """Nodes and the edges that leave them."""

    edges: dict[Node, list[Edge]] = field(default_factory=dict)

    def connect(self, start: Node, end: Node, room: int, cost: int = 0) -> None:
        """Add an edge, and the one that takes its flow back."""
        there, back = Edge(end, room, cost), Edge(start, 0, -cost)
        there.back, back.back = back, there
        self.edges.setdefault(start, []).append(there)
        self.edges.setdefault(end, []).append(back)

    def send_all(self, start: Node, end: Node) -> tuple[int, int]:
        """Send as much as there is room for, the cheapest first; return how much, and its cost."""
        sent = cost = 0
        while path := self._cheapest(start, end):
            for edge in path:
                assert edge.back is not None
                edge.room -= 1
                edge.back.room += 1
                cost += edge.cost
            sent += 1
        return sent, cost

    def _cheapest(self, start: Node, end: Node) -> list[Edge]:
        cost = {start: 0}
        reached_by: dict[Node, Edge] = {}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                price = cost[node] + edge.cost
                if edge.room and price < cost.get(edge.to, NEVER):
                    cost[edge.to] = price
                    reached_by[edge.to] = edge
                    waiting.append(edge.to)
        path = []
        while end in reached_by:
            path.append(reached_by[end])
            back = path[-1].back
            assert back is not None
            end = back.to
        return path


def fewest_new_copies(
    previous: Sequence[Sequence[str | None]],
    members: Sequence[str],
    copies: int,
    *,
    shares: Mapping[str, tuple[int, int]],
    over: int,
    zones: Mapping[str, str],
    limit: int,
) -> int:
    """Return the least number of new copies with which all rows are full and all shares kept.

    ``shares`` has for each member the least and the most copies that it may hold; ``over`` is how
    many copies there are beyond all the leasts.  ``limit`` is the most that a row may have in one
    zone.
    """
    network = Network()
    for number, row in enumerate(previous):
        network.connect(("source",), ("row", number), copies)
        for zone in sorted(set(zones.values())):
            network.connect(("row", number), ("zone", number, zone), limit)
        for member in members:
            place = ("zone", number, zones[member])
            network.connect(place, ("member", member), 1, 0 if member in row else 1)
    for member in members:
        least, most = shares[member]
        network.connect(("member", member), ("sink",), least, MUST)
        network.connect(("member", member), ("over",), most - least)
    network.connect(("over",), ("sink",), over)
    sent, cost = network.send_all(("source",), ("sink",))
    assert sent == copies * len(previous)
    return cost - MUST * (sent - over)
