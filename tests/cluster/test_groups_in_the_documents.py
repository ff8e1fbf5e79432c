"""Figures 1, 3 and 4 of the document on update counters, with transactions of several groups."""

from __future__ import annotations

from typing import Any

import pytest

from support.parts import Three, together

APART: Any = {"nodes": 6, "backups": 1, "apart": True}


async def begun(three: Three, count: int, at: int, *others: str) -> Any:
    """Send a transaction that writes so many keys of p, from one on, and one key of others."""
    keys = [three.at.key(three.p.partition, at + place) for place in range(count)]
    pairs = dict.fromkeys(keys, b"new") | {three.key(name): b"new" for name in others}
    return await three.begin_pairs("p", pairs)


def test_figure_1_two_transactions_end_in_the_other_order_at_a_copy() -> None:
    # Tx1 has numbers 1 to 3 of p, Tx2 has 4 and 5, and each writes a second partition, too.
    async def scenario(three: Three) -> None:
        near, backup = three.near, three.p.backups[0]
        three.at.hold("prepare", src=near, dst=three.q.primary)
        first = await begun(three, 3, 0, "q")
        await three.prepared(first, "p")
        second = await begun(three, 2, 3, "r")
        await second.answer()
        await three.until(lambda: three.p.numbers(backup)[2] == ((3, 2),))
        assert three.p.numbers(backup) == (0, 5, ((3, 2),)), "Tx2 is applied, out of order"
        assert three.p.numbers(near) == (0, 5, ((3, 2),))
        three.at.release("prepare", src=near, dst=three.q.primary)
        await first.answer()
        assert await three.p.equal() == (5, 5)
        assert await three.p.equal() == await three.p.equal()

    together(scenario, **APART)


@pytest.mark.parametrize("prepares", [False, True], ids=["never", "at its group"])
def test_figure_3_the_primary_dies_while_a_lower_number_has_no_outcome(*, prepares: bool) -> None:
    # Tx2 has committed above Tx1.  Tx1 is prepared in p, and its second group refuses or has it.
    async def scenario(three: Three) -> None:
        near, other = three.near, three.q.primary
        three.at.hold("prepared" if prepares else "prepare",
                      src=other if prepares else near, dst=near if prepares else other)  # fmt: skip
        first = await begun(three, 3, 0, "q")
        await three.prepared(first, "p", *(["q"] if prepares else []))
        second = await begun(three, 2, 3, "r")
        await second.answer()
        await three.p.fall(near)
        await three.p.author(near)
        await three.whole()
        # The gap is closed: with what was in it, or with nothing, and alike at all copies.
        assert await three.p.equal() == (5, 5)
        values = [await three.p.value(place) for place in range(5)]
        assert values == [b"new" if prepares else None] * 3 + [b"new"] * 2
        await three.p.put(9, b"behind")
        assert await three.p.equal() == (6, 6)

    together(scenario, **APART)


def test_figure_4_a_transaction_is_prepared_on_one_backup_only() -> None:
    # The new primary has it, or has it not; the other copy learns the same.
    async def scenario(three: Three) -> None:
        old, backups = three.near, three.p.backups
        await three.p.put(9, b"before")
        three.at.hold("replicate", src=old, dst=backups[0])
        tx = await begun(three, 3, 0, "q")
        await three.p.pending_at(tx.tx_id, old, backups[1])
        await three.p.fall(old)
        await three.p.author(old)
        await three.whole()
        assert await three.p.outcome(tx.tx_id) == "rolled_back"
        assert await three.values("q") == [None], "nor is it there"
        lwm, hwm = await three.p.equal()
        assert lwm == hwm == 4, "its numbers are closed, by one author for all"
        await three.p.put(8, b"behind")
        assert await three.p.equal() == (5, 5)

    together(scenario, nodes=3, backups=2)


def test_after_a_switch_numbers_go_on_behind_all_that_any_copy_has_seen() -> None:
    # HWM of the new primary: behind what is pending, which keeps its numbers.
    async def scenario(three: Three) -> None:
        old, other = three.near, three.q.primary
        three.at.hold("prepared", src=other, dst=old)
        tx = await begun(three, 3, 0, "q")
        await three.prepared(tx, "p", "q")
        await three.p.fall(old)
        new = await three.p.author(old)
        await three.p.taken_over(1)
        await three.p.put(9, b"behind")
        await three.whole()
        lwm, hwm = await three.p.equal()
        assert (lwm, hwm) == (4, 4)
        assert three.p.table(new) == ((1, 1), (2, 4))
        assert await three.p.outcome(tx.tx_id) == "committed"

    together(scenario, **APART)
