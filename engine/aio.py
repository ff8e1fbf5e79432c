from __future__ import annotations

import contextlib

import trio

from ..affinity.partitions import partition_of
from . import database as sync
from .commit import Commit
from .log_thread import LogThread
from .updates import FewUpdates


class M:
    def __init__(s, db, m):
        ns = m.namespace
        prefixes = ns.prefixes
        count = len(prefixes)
        number = ns.id
        ek, ev = ns.encode_key, ns.encode_value
        log = db.log.commit
        check = db.sdb._check_plain

        async def put(key, value):
            key = ek(key)
            partition = partition_of(key, count)
            commit = Commit(
                FewUpdates({prefixes[partition] + key: (partition, number, key, ev(value))}),
                True,
                check,
            )
            await log(commit)
            if commit.error is not None:
                raise commit.error

        s.set = put


class D:
    def map(s, n):
        return M(s, s.sdb.map(n))


@contextlib.asynccontextmanager
async def open(path, **k):
    d = D()
    d.sdb = sync.open(path, **k)
    d.log = LogThread(d.sdb, trio.lowlevel.current_trio_token())
    yield d
    await d.log.stop()
    d.sdb.close()
