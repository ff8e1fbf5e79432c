"""However works come and go, each is found in every way, and nothing else is."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, strategies as st

from tidelog.affinity.topology import Incarnation
from tidelog.engine.node.works import Work, WorkPhase, Works

NEARS = [Incarnation(UUID(int=number), 1) for number in (1, 2)]
IDS = [b"%016d" % number for number in range(4)]
PARTITIONS = range(3)


def work_of(partition: int, tx_id: bytes, owner: int, phase: WorkPhase) -> Work:
    near = NEARS[owner % 2]
    return Work(partition, 1, tx_id, 1, near, owner, owner, frozenset(), phase)


Step = tuple[str, int, bytes, WorkPhase]
STEPS = st.tuples(
    st.sampled_from(["add", "remove", "remove another", "prepare", "phase"]),
    st.sampled_from(PARTITIONS),
    st.sampled_from(IDS),
    st.sampled_from(["locking", "locked", "preparing", "prepared", "ending"]),
)


@given(st.lists(STEPS, max_size=40))
def test_all_ways_to_find_a_work_agree(steps: list[Step]) -> None:
    works, model = Works(), dict[tuple[int, bytes], Work]()
    for owner, (what, partition, tx_id, phase) in enumerate(steps, 1):
        known = model.get((partition, tx_id))
        if what == "add":
            model[partition, tx_id] = work_of(partition, tx_id, owner, phase)
            works.add(model[partition, tx_id])
        elif what == "remove another":
            works.remove(work_of(partition, tx_id, owner, phase))
        elif what == "remove" and known is not None:
            works.remove(known)
            del model[partition, tx_id]
        elif what == "prepare" and known is not None:
            works.enter_preparing(known)
            assert (known.phase, known.until) == ("preparing", float("inf"))
        elif what == "phase" and known is not None and not known.holds_only:
            known.phase = phase if phase in ("prepared", "ending") else known.phase
        _agree(works, model)


def _agree(works: Works, model: dict[tuple[int, bytes], Work]) -> None:
    there = set(map(id, model.values()))
    assert len(works) == len(there)
    assert [id(one) for one in works if id(one) not in there] == []
    assert set(map(id, works)) == there
    for partition in PARTITIONS:
        assert {id(one) for one in works.within(partition)} == {
            id(one) for (at, _), one in model.items() if at == partition
        }
        for tx_id in IDS:
            assert works.at(partition, tx_id) is model.get((partition, tx_id))
    for tx_id in IDS:
        assert {id(one) for one in works.of(tx_id)} == {
            id(one) for (_, name), one in model.items() if name == tx_id
        }
    assert {id(one) for one in works.prepared()} == {
        id(one) for one in model.values() if one.phase == "prepared"
    }
    holding = [one for one in model.values() if one.phase in ("locking", "locked")]
    assert set(map(id, works.holding())) == set(map(id, holding))
    for one in model.values():
        asked = works.asked(one.near, one.ask, one.partition)
        assert asked is (one if one.holds_only else None)
        assert works.is_ending(one.owner) is (one.phase == "ending")
    assert not works.is_ending(0)


def test_those_that_are_here_may_go_while_one_looks_at_them() -> None:
    works = Works()
    for number in range(3):
        works.add(work_of(number, IDS[0], 1 + number, "locked"))
    for one in works:
        for other in works.holding():
            works.remove(other)
        assert one.partition in PARTITIONS
    assert (len(works), works.holding(), list(works)) == (0, [], [])
