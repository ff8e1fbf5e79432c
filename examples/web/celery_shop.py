"""A shop behind Celery: one process of a pool writes, those of another pool read.

    cd examples/web
    SHOP_ROLE=writer celery --app celery_shop worker --queues writes --concurrency 1 --hostname w@%h
    SHOP_ROLE=reader celery --app celery_shop worker --queues reads --concurrency 4 --hostname r@%h
    python celery_shop.py apples

Each process of a pool opens the store for itself, behind its fork.  The broker here is a folder,
for a machine without one; nothing else depends on that.  `SHOP_STORE` says where the store is,
`SHOP_BROKER` where the messages are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

import tidelog
from tidelog.codecs import I64, Str

STORE = os.environ.get("SHOP_STORE", "shop.tl")
BROKER = Path(os.environ.get("SHOP_BROKER", "shop-broker")).absolute()

app = Celery("shop", broker="filesystem://", backend=f"file://{BROKER / 'results'}")
for name in ("messages", "control", "results"):
    (BROKER / name).mkdir(parents=True, exist_ok=True)
app.conf.broker_transport_options = {
    "data_folder_in": str(BROKER / "messages"),
    "data_folder_out": str(BROKER / "messages"),
    "control_folder": str(BROKER / "control"),
    "polling_interval": 0.1,
}
app.conf.task_routes = {"shop.sell": {"queue": "writes"}, "shop.sold": {"queue": "reads"}}

db: Any = None


@worker_process_init.connect
def open_store(**_: Any) -> None:
    """Open the store in a process of the pool, for what the pool is there for.

    Celery logs what a signal raises, and lets the process work all the same: see ``store``.
    """
    global db
    if os.environ["SHOP_ROLE"] == "writer":
        db = tidelog.open(STORE)
    else:
        db = tidelog.open(STORE, read_only=True)


@worker_process_shutdown.connect
def close_store(**_: Any) -> None:
    """Close the store when the pool ends."""
    if db is not None:
        db.close()


def store() -> Any:
    """Return the store of this process; what keeps it from being open is the error of the task."""
    if db is None:
        open_store()
    return db


@app.task(name="shop.sell")
def sell(item: str) -> int:
    """Count one more of an item; return how many were sold."""
    total: int = store().map("sold", key=Str, value=I64).incr(item)
    return total


@app.task(name="shop.sold")
def sold(item: str) -> int:
    """Return how many of an item were sold, as far as that is durable."""
    reader = store()
    reader.refresh()
    return reader.map("sold").get(item, 0) if "sold" in reader.maps() else 0


if __name__ == "__main__":
    item = sys.argv[1]
    totals = [sell.delay(item) for _ in range(5)]
    print("sold:", max(total.get(timeout=60, interval=0.05) for total in totals))
    seen = 0
    while seen < 5:  # readers are a moment behind
        seen = sold.delay(item).get(timeout=60, interval=0.05)
    print("seen:", seen)
