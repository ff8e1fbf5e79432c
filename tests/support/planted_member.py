"""The command ``tidelog`` with a mistake: a member answers without a look at its lease (L5).

python -m support.planted_member server run DIR
"""

from __future__ import annotations

from tidelog.engine.agreement.machine import Agreement
from tidelog.tools.entry import main


def may_serve(self: Agreement, partition: int, now: float) -> bool:
    return self.is_author(self.topology.partitions[partition])


if __name__ == "__main__":
    Agreement.may_serve = may_serve  # type: ignore[method-assign]  # the mistake
    main()
