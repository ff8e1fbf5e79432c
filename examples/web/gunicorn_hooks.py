"""What gunicorn does in each of its workers: open the store, and close it.

Behind the fork, whether the application was loaded before it (`--preload`) or not.
"""

from __future__ import annotations

from typing import Any


def post_worker_init(worker: Any) -> None:
    """Open the store; if that raises, the worker does not boot, and gunicorn ends."""
    worker.wsgi.open()


def worker_exit(_server: Any, worker: Any) -> None:
    """Close the store behind the last request."""
    worker.wsgi.close()
