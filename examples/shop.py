"""Sessions, carts and a checkout behind FastAPI, in one event loop: `tidelog.aio` under asyncio.

    uvicorn --app-dir examples shop:app

Tidelog forgets no key by itself, so the program keeps the end of each session, and a second map
that is sorted by it.  A checkout takes from the stock, empties the cart and notes the order, all
of it or nothing, and is tried again if another one was in its way.  `SHOP_STORE` says where the
store is, and `SHOP_SESSION` for how many seconds a session lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, HTTPException, Request

from tidelog import aio, codecs
from tidelog.codecs import I64, Str, Tuple, Uuid

LIFE = timedelta(seconds=float(os.environ.get("SHOP_SESSION", "1800")))
SWEEP_SECONDS = 60


@dataclass(frozen=True)
class Session:
    """Who is there, and until when."""

    user: str
    ends: datetime


@dataclass(frozen=True)
class Product:
    """What there is of it, and what one of it costs."""

    price: Decimal
    left: int


@dataclass
class Cart:
    """How many of each product somebody wants."""

    items: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Order:
    """What somebody has bought."""

    user: str
    items: dict[str, int]
    total: Decimal
    at: datetime


class Shop:
    """The maps of the store, and what is done with several of them at once."""

    def __init__(self, db: aio.Database) -> None:
        self.db = db
        self.sessions = db.map("sessions", key=Uuid, value=codecs.dataclass(Session))
        self.ends: aio.Map[tuple[datetime, UUID], bytes] = db.map("ends", key=Tuple)
        self.carts = db.map("carts", key=Uuid, value=codecs.dataclass(Cart))
        self.products = db.map("products", key=Str, value=codecs.dataclass(Product))
        self.orders = db.map("orders", key=I64, value=codecs.dataclass(Order))

    async def begin(self, tx: aio.Transaction, token: UUID, session: Session) -> None:
        """Begin a session, with an empty cart."""
        await tx[self.sessions].set(token, session)
        await tx[self.ends].set((session.ends, token), b"")
        await tx[self.carts].set(token, Cart())

    async def session(self, tx: aio.Transaction, token: UUID) -> Session:
        """Return a session that has not ended, and move its end."""
        session = await tx[self.sessions].get(token)
        now = datetime.now(UTC)
        if session is None or session.ends <= now:
            raise HTTPException(401, "log in")
        await tx[self.ends].discard((session.ends, token))
        session = replace(session, ends=now + LIFE)
        await tx[self.sessions].set(token, session)
        await tx[self.ends].set((session.ends, token), b"")
        return session

    async def put(self, tx: aio.Transaction, token: UUID, name: str, count: int) -> Cart:
        """Put some of a product into the cart."""
        await self.session(tx, token)
        if not await tx[self.products].contains(name):
            raise HTTPException(404, f"there is no {name}")
        cart = await tx[self.carts].get(token) or Cart()
        cart.items[name] = cart.items.get(name, 0) + count
        await tx[self.carts].set(token, cart)
        return cart

    async def buy(self, tx: aio.Transaction, token: UUID) -> int:
        """Sell what is in the cart; return the number of the order."""
        session = await self.session(tx, token)
        cart = await tx[self.carts].get(token)
        if not cart or not cart.items:
            raise HTTPException(400, "the cart is empty")
        products, orders = tx[self.products], tx[self.orders]
        total = Decimal(0)
        for name, count in sorted(cart.items.items()):
            product = await products.get(name)
            if product is None or product.left < count:
                raise HTTPException(409, f"{name} is sold out")
            await products.set(name, replace(product, left=product.left - count))
            total += count * product.price
        newest = await orders.last()
        number = 1 if newest is None else newest[0] + 1
        await orders.set(number, Order(session.user, cart.items, total, datetime.now(UTC)))
        await tx[self.carts].set(token, Cart())
        return number

    async def end(self, tx: aio.Transaction, now: datetime) -> int:
        """Delete the sessions that have ended by now; return how many."""
        gone = [key async for key, _ in tx[self.ends].range(stop=(now,), limit=100)]
        for key in gone:
            await tx[self.ends].delete(key)
            await tx[self.sessions].discard(key[1])
            await tx[self.carts].discard(key[1])
        return len(gone)

    async def sweep(self) -> None:
        """Delete sessions that have ended, for ever."""
        while True:
            await self.db.run(self.end, datetime.now(UTC), tag="sweep")
            await asyncio.sleep(SWEEP_SECONDS)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the store open, and its sessions swept, while the server serves."""
    async with aio.open(os.environ.get("SHOP_STORE", "shop.tl")) as db:
        app.state.shop = Shop(db)
        sweeping = asyncio.create_task(app.state.shop.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping


app = FastAPI(lifespan=lifespan)


def opened(request: Request) -> Shop:
    """Return what the lifespan has opened."""
    shop: Shop = request.app.state.shop
    return shop


Here = Annotated[Shop, Depends(opened)]


@app.post("/sessions", status_code=201)
async def log_in(user: str, shop: Here) -> UUID:
    """Begin a session; return its token."""
    token = uuid4()
    session = Session(user, datetime.now(UTC) + LIFE)
    await shop.db.run(shop.begin, token, session, tag="log in")
    return token


@app.put("/products/{name}")
async def deliver(name: str, count: int, price: Decimal, shop: Here) -> Product:
    """Add to a product, and set its price."""

    async def add(tx: aio.Transaction) -> Product:
        old = await tx[shop.products].get(name)
        product = Product(price, count + (old.left if old else 0))
        await tx[shop.products].set(name, product)
        return product

    return await shop.db.run(add, tag="deliver")


@app.get("/products")
async def all_products(shop: Here) -> dict[str, Product]:
    """Return all products, as of one moment."""
    return {name: product async for name, product in shop.products.items()}


@app.post("/carts/{token}/{name}")
async def put(token: UUID, name: str, shop: Here, count: int = 1) -> Cart:
    """Put something into a cart; return all of it."""
    return await shop.db.run(shop.put, token, name, count, tag="put")


@app.post("/carts/{token}", status_code=201)
async def check_out(token: UUID, shop: Here) -> int:
    """Buy what is in the cart; return the number of the order."""
    return await shop.db.run(shop.buy, token, tag="check out")
