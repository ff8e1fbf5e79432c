"""The names of a store's files and folders, which nothing else in the package spells out.

``ARCHITECTURE.md`` shows them as a tree.  Left out: the names inside of the log's folder, which
follow from numbers of segments (``wal.format``, ``wal.index``, ``wal.writer``).
"""

from __future__ import annotations

MANIFEST_NAME = "manifest"
NEW_MANIFEST_NAME = "manifest.tmp"
"""The next manifest, while it is written."""

CONFIG_LOG_NAME = "config.log"
"""The configuration log of a cluster's member."""
NEW_CONFIG_LOG_NAME = "config.tmp"
"""The next file of the configuration log, while it is written."""

CLUSTER_FILE_NAME = "cluster.toml"
"""What `tidelog cluster` writes of the members that it runs on one machine."""
SERVER_LOG_NAME = "server.log"
"""What a member has printed that `tidelog cluster` runs: it is there before anything else."""

ASIDE_NAME = "aside"
"""What members keep of copies that were left behind when a partition was reset."""

LOCK_NAME = "lock"
WAL_NAME = "wal"
READERS_NAME = "readers"
STAGING_NAME = "staging"
"""What the tasks of Spark jobs have written and nobody has committed yet."""

DATA_NAME = "data"
DATA_FILE = "data.mdb"
"""LMDB chooses this name."""
FRESH_DATA_FILE = "data.tmp"
"""The next data file, before it takes the place of the last one."""
FRESH_DATA_LOCK = "data.tmp-lock"
"""Its lock file: LMDB chooses this name."""
WHOLE_DATA_FILE = "data.new"
"""The next data file from where it is whole to where it takes the place of the last one."""

STORE_FOLDERS = (WAL_NAME, DATA_NAME, READERS_NAME)
"""The folders that every store has."""
STORE_FILES = frozenset((LOCK_NAME, NEW_MANIFEST_NAME))
"""The files beside these that a store has before it has its manifest."""
