"""A shop behind FastAPI: one process, many threads, one store.

    uvicorn --app-dir examples/web fastapi_shop:app

The endpoints are plain functions, which FastAPI runs in threads: the store may be shared by all of
them, and commits of the same moment share one sync.  The store is opened when the server starts,
and closed when it has answered the last request.  `SHOP_STORE` says where it is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request

import tidelog
from tidelog.codecs import I64, Json, Str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the store open while the server serves."""
    with tidelog.open(os.environ.get("SHOP_STORE", "shop.tl")) as db:
        app.state.db = db
        app.state.stock = db.map("stock", key=Str, value=I64)
        app.state.orders = db.map("orders", key=I64, value=Json)
        yield


app = FastAPI(lifespan=lifespan)


def state_of(request: Request) -> Any:
    """Return what the lifespan has opened."""
    return request.app.state


Shop = Annotated[Any, Depends(state_of)]


@app.get("/stock")
def all_stock(shop: Shop) -> dict[str, int]:
    """Return how many there are of everything, as of one moment."""
    return dict(shop.stock.items())


@app.get("/stock/{item}")
def stock_of(item: str, shop: Shop) -> int:
    """Return how many there are of one item."""
    count = shop.stock.get(item)
    if count is None:
        raise HTTPException(404, f"there are no {item}")
    return int(count)


@app.put("/stock/{item}")
def deliver(item: str, count: int, shop: Shop) -> int:
    """Add to an item; return how many there are."""
    return int(shop.stock.incr(item, count))


@app.post("/orders", status_code=201)
def order(item: str, shop: Shop) -> int:
    """Take one of an item and note the order, both or neither; return its number."""

    def place(tx: tidelog.Transaction) -> int:
        stock, orders = tx[shop.stock], tx[shop.orders]
        if stock.get(item, 0) == 0:
            raise HTTPException(409, f"{item} are sold out")
        stock[item] -= 1
        newest = orders.last()
        number = 1 if newest is None else newest[0] + 1
        orders[number] = {"item": item}
        return number

    return int(shop.db.run(place))  # in a thread of its own, and again if others were in its way
