from __future__ import annotations
import contextlib
import trio
from .log_thread import LogThread
from . import database as sync


class D:
    def map(s, n):
        m = s.sdb.map(n)

        async def otherwise(k, v):
            raise AssertionError

        class M:
            pass

        M.set = staticmethod(s.log.putter(m.namespace, otherwise))
        return M


@contextlib.asynccontextmanager
async def open(path, **k):
    d = D()
    d.sdb = sync.open(path, **k)
    d.log = LogThread(d.sdb, trio.lowlevel.current_trio_token())
    yield d
    await d.log.stop()
    d.sdb.close()
