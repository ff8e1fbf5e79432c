"""A shop behind gunicorn: one worker writes, any number of others read beside it.

    gunicorn --config examples/web/gunicorn_hooks.py --pythonpath examples/web \\
        --workers 1 --threads 8 gunicorn_shop:writer
    gunicorn --config examples/web/gunicorn_hooks.py --pythonpath examples/web \\
        --workers 4 --preload --bind 127.0.0.1:8001 gunicorn_shop:reader

A proxy in front of both sends GET to the second one and all else to the first.  Nothing is opened
when this module is imported, since with `--preload` that happens in a process that only forks.
`gunicorn_hooks` opens the store in each worker.  `SHOP_STORE` says where it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tidelog
from tidelog.codecs import I64, Str
from tidelog.errors import AlreadyOpenError

Answer = tuple[int, str]
STATUS = {200: "200 OK", 404: "404 Not Found", 405: "405 Method Not Allowed"}


class Shop:
    """A WSGI application over one map of a store."""

    def __init__(self, *, read_only: bool) -> None:
        self.read_only = read_only
        self.db: Any = None

    def open(self) -> None:
        """Open the store; called in the worker."""
        path = os.environ.get("SHOP_STORE", "shop.tl")
        if self.read_only:
            self.db = tidelog.open(path, read_only=True)
            self.stock = self.db.map("stock")
        else:
            self.db = opened_at_last(path)
            self.stock = self.db.map("stock", key=Str, value=I64)

    def close(self) -> None:
        """Close the store, if this worker came to open it."""
        if self.db is not None:
            self.db.close()

    def __call__(self, environ: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer `GET /apples`, and `POST /apples`, which adds one."""
        status, text = self.answer(environ["REQUEST_METHOD"], environ["PATH_INFO"].strip("/"))
        start(STATUS[status], [("Content-Type", "text/plain")])
        return [text.encode()]

    def answer(self, method: str, item: str) -> Answer:
        """Return status and text."""
        if method == "POST" and not self.read_only:
            return 200, str(self.stock.incr(item))
        if method != "GET":
            return 405, f"no {method} here"
        if self.read_only:
            self.db.refresh()  # what has become durable since
        count = self.stock.get(item)
        return (404, f"there are no {item}") if count is None else (200, str(count))


def opened_at_last(path: str) -> tidelog.Database:
    """Open a store when the worker has gone that this one replaces, as on SIGHUP."""
    until = time.monotonic() + float(os.environ.get("SHOP_PATIENCE", "10"))
    while True:
        try:
            return tidelog.open(path)
        except AlreadyOpenError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.05)


writer = Shop(read_only=False)
reader = Shop(read_only=True)
