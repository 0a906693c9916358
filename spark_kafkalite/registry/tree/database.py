"""The embedded registry's database: its persistent nodes in one SQLite file.

The file ``registry.db`` uses WAL and ``synchronous=FULL``, so every commit is fsynced. It has three tables:

- ``nodes(path, data, czxid, mzxid, pzxid, ctime, mtime, version, child_creations, acl, aversion, owner)``: the nodes.
  ``acl`` is JSON (``[[permissions, scheme, id], ...]``), or null if every client may do everything. ``owner`` is the
  stored session that owns an ephemeral node, otherwise 0.
- ``sessions(session, password, timeout_ms)``: the sessions that outlive the process.
- ``counters(name, value)``: ``format`` (4), ``zxid``, and ``session`` (the last number given to a session).

The number of the last transaction is the largest of the counter ``zxid`` and all ``mzxid`` and ``pzxid``. So a commit
does not write the counter if it saves a node with its own zxid. Only a commit with a larger zxid can replace or remove
the row with the largest one. Therefore the usual commit is one statement, and releases the interpreter's lock only
once. That matters because the writer thread has to get the lock back from the listener's thread each time.

Format 1 had no ``acl`` and ``aversion``, format 2 always wrote the counter ``zxid``, format 3 stored no sessions. The
database upgrades a file in these formats when it opens it.

A crash does not undo a commit: after kill -9 or a power loss the last commit is still in the file. One thread of one
process at a time uses a database. The process that opens it holds the directory's lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.tree import private_files
from spark_kafkalite.registry.tree.acl import from_text, to_text
from spark_kafkalite.registry.tree.tree import DataNode, KeptSession, Tree

DATABASE_NAME: Final = "registry.db"
_FORMAT: Final = 4

_SESSIONS: Final = (
    "CREATE TABLE sessions(session INTEGER PRIMARY KEY, password BLOB NOT NULL, timeout_ms INTEGER NOT NULL)"
)
_NODE_COLUMNS: Final = (
    "path TEXT PRIMARY KEY",
    "data BLOB NOT NULL",
    "czxid INTEGER NOT NULL",
    "mzxid INTEGER NOT NULL",
    "pzxid INTEGER NOT NULL",
    "ctime INTEGER NOT NULL",
    "mtime INTEGER NOT NULL",
    "version INTEGER NOT NULL",
    "child_creations INTEGER NOT NULL",
    "acl TEXT",
    "aversion INTEGER NOT NULL DEFAULT 0",
    "owner INTEGER NOT NULL DEFAULT 0",
)
_SCHEMA: Final = (
    f"CREATE TABLE nodes({', '.join(_NODE_COLUMNS)}) WITHOUT ROWID",
    _SESSIONS,
    "CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)
# The statements that upgrade an older format to this one.
_KEEP_SESSIONS: Final = ("ALTER TABLE nodes ADD COLUMN owner INTEGER NOT NULL DEFAULT 0", _SESSIONS)
_UPGRADES: Final[dict[int, tuple[str, ...]]] = {
    1: (
        "ALTER TABLE nodes ADD COLUMN acl TEXT",
        "ALTER TABLE nodes ADD COLUMN aversion INTEGER NOT NULL DEFAULT 0",
        *_KEEP_SESSIONS,
    ),
    2: _KEEP_SESSIONS,
    3: _KEEP_SESSIONS,
}
_ROW: Final = "(?,?,?,?,?,?,?,?,?,?,?,?)"
# The largest number of rows in one statement. SQLite binds at most 32766 values in one.
_ROWS_AT_ONCE: Final = 64
_SAVE_NODES: Final = [f"INSERT OR REPLACE INTO nodes VALUES {','.join([_ROW] * n)}" for n in range(_ROWS_AT_ONCE + 1)]
# The largest valid zxid, which leaves room for more transactions.
_MAX_ZXID: Final = 2**63 - 2**32
_MAX_INT32: Final = 2**31 - 1
# A node's cversion, a 32-bit number, is twice its child creations minus its number of children.
_MAX_CHILD_CREATIONS: Final = 2**30 - 1
_NO_SESSIONS: Final[Mapping[int, KeptSession | None]] = MappingProxyType({})
_SAVE_COUNTER: Final = "INSERT OR REPLACE INTO counters VALUES (?,?)"


class DatabaseFailed(RegistryError):
    """A commit failed: its data is not on the disk, and the disk cannot be trusted."""


class DatabaseFull(RegistryError):
    """A commit found no space on the disk, or no memory. Its data is not stored; all earlier commits are."""


class NodeDatabase:
    """An open database file."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create an empty one. Only ``create`` adds the tables, so reading changes nothing.

        Raises RegistryError if the file is not such a database.
        """
        self.path = path
        self._saved_session = 0
        for each in (path, path.with_name(f"{path.name}-wal")):
            if each.exists() and not each.is_file():
                # SQLite would notice this at the first commit, and report a failed disk.
                raise RegistryError(f"cannot open the registry {path}: {each} is not a file; put the file in its place")
        private_files.create_empty(path)
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self._open()
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error

    def _open(self) -> None:
        # The lock file admits only one process, so SQLite needs no shared memory file for its WAL index.
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY"):
            self._connection.execute(f"PRAGMA {pragma}")
        found = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'counters'").fetchone()
        self._is_new = found is None
        if not self._is_new:
            self._upgrade()

    def create(self) -> None:
        """Create the tables if the file is new. Raises RegistryError."""
        if not self._is_new:
            return
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.executemany(_SAVE_COUNTER, (("format", _FORMAT), ("zxid", 0), ("session", 0)))
            connection.execute(_SAVE_NODES[1], _row("/", Tree().nodes["/"]))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        self._is_new = False

    def _upgrade(self) -> None:
        connection = self._connection
        (found,) = connection.execute("SELECT value FROM counters WHERE name = 'format'").fetchone() or (None,)
        if found not in _UPGRADES:
            return
        connection.execute("BEGIN IMMEDIATE")
        for statement in _UPGRADES[found]:
            connection.execute(statement)
        connection.execute(_SAVE_COUNTER, ("format", _FORMAT))
        connection.execute("COMMIT")

    def load(self, tree: Tree) -> tuple[int, int]:
        """Load all nodes into the tree; return (last zxid, last session number).

        Raises RegistryError, also for an unknown format.
        """
        if self._is_new:
            return 0, 0
        try:
            counters = dict(self._connection.execute("SELECT name, value FROM counters"))
            if counters.get("format") != _FORMAT:
                problem = f"format {counters.get('format')} is not known, this version reads format {_FORMAT}"
                raise RegistryError(problem)
            for name in ("zxid", "session"):
                if type(counters[name]) is not int or not 0 <= counters[name] <= _MAX_ZXID:
                    raise ValueError(f"the counter {name} is {counters[name]!r}, not 0 to {_MAX_ZXID}")
            last_zxid = counters["zxid"]
            for session_id, password, timeout_ms in self._connection.execute("SELECT * FROM sessions"):
                if type(password) is not bytes or type(timeout_ms) is not int or timeout_ms <= 0:
                    raise ValueError(f"the row of session {session_id} holds values that no session has")
                tree.load_session(session_id, KeptSession(password, timeout_ms))
            # A parent's path is a prefix of its children's, so this order loads parents first.
            for path, *fields in self._connection.execute("SELECT * FROM nodes ORDER BY path"):
                data, czxid, mzxid, pzxid, ctime, mtime, version, child_creations, acl, aversion, owner = fields
                if type(data) is not bytes or not all(type(each) is int for each in (*fields[1:8], aversion, owner)):
                    raise ValueError(f"the row of {path} holds values of other types")
                _check_range(path, (czxid, mzxid, pzxid), _MAX_ZXID)
                _check_range(path, (version, aversion), _MAX_INT32)
                _check_range(path, (child_creations,), _MAX_CHILD_CREATIONS)
                node = DataNode(data, czxid, mzxid, pzxid, ctime, mtime, version, child_creations)
                node.acl, node.aversion, node.ephemeral_owner = from_text(acl), aversion, owner
                tree.load(path, node)
                last_zxid = max(last_zxid, mzxid, pzxid)
            self._saved_session = counters["session"]
        except (sqlite3.Error, RegistryError, ValueError, TypeError, KeyError) as error:
            self.close()
            raise self._unusable(error) from error
        return last_zxid, self._saved_session

    def forget_sessions(self, zxid: int) -> None:
        """End all stored sessions and their nodes, because another process takes over. Raises RegistryError."""
        connection = self._connection
        try:
            if not connection.execute("SELECT 1 FROM sessions").fetchone():
                return
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM nodes WHERE owner != 0")
            connection.execute("DELETE FROM sessions")
            # The removed rows may have had the largest zxid.
            connection.execute(_SAVE_COUNTER, ("zxid", zxid))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def commit(
        self,
        saved: Sequence[tuple[str, DataNode]],
        removed: Sequence[str],
        zxid: int,
        session: int,
        sessions: Mapping[int, KeptSession | None] = _NO_SESSIONS,
    ) -> None:
        """Write all changes in one transaction, which is on the disk when this returns. Ended ``sessions`` are None.

        Raises DatabaseFull and DatabaseFailed; then no change was written.
        """
        connection = self._connection
        saves_zxid = any(zxid in (node.mzxid, node.pzxid) for _, node in saved)
        try:
            simple = not removed and not sessions and session == self._saved_session
            if saves_zxid and simple and len(saved) <= _ROWS_AT_ONCE:
                # The single statement is a transaction by itself.
                self._save(saved)
                return
            connection.execute("BEGIN IMMEDIATE")
            for first in range(0, len(saved), _ROWS_AT_ONCE):
                self._save(saved[first : first + _ROWS_AT_ONCE])
            connection.executemany("DELETE FROM nodes WHERE path = ?", [(path,) for path in removed])
            for session_id, kept in sessions.items():
                connection.execute("DELETE FROM sessions WHERE session = ?", (session_id,))
                if kept is not None:
                    values = session_id, kept.password, kept.timeout_ms
                    connection.execute("INSERT INTO sessions VALUES (?,?,?)", values)
            if not saves_zxid:
                connection.execute(_SAVE_COUNTER, ("zxid", zxid))
            if session != self._saved_session:
                connection.execute(_SAVE_COUNTER, ("session", session))
            connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError, OverflowError) as error:
            with contextlib.suppress(sqlite3.Error, MemoryError):
                connection.execute("ROLLBACK")
            # Later transactions would become part of one that cannot be rolled back.
            if self._has_no_room(error) and not connection.in_transaction:
                raise DatabaseFull(str(error) or "out of memory") from error
            raise DatabaseFailed(str(error)) from error
        self._saved_session = session

    def _save(self, saved: Sequence[tuple[str, DataNode]]) -> None:
        values: list[Any] = []
        for path, node in saved:
            values += _row(path, node)
        self._connection.execute(_SAVE_NODES[len(saved)], values)

    def _has_no_room(self, error: Exception) -> bool:
        """Return whether an error means only missing space or memory. All other errors mean that the disk failed."""
        if isinstance(error, MemoryError):
            return True
        name = getattr(error, "sqlite_errorname", "")
        if name in ("SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_NOMEM") or name.startswith("SQLITE_READONLY"):
            return True
        # SQLite has no error number for a write that a read-only file system refuses.
        try:
            return name == "SQLITE_IOERR_WRITE" and bool(os.statvfs(self.path).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def close(self) -> None:
        """Close the file. SQLite moves the write-ahead log into it, unless the disk has failed."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _unusable(self, error: Exception) -> RegistryError:
        text = f"cannot open the registry {self.path}: {error}"
        damaged = not isinstance(error, (sqlite3.Error, RegistryError)) or getattr(error, "sqlite_errorname", "") in (
            "SQLITE_CORRUPT",
            "SQLITE_NOTADB",
        )
        if damaged:
            text += "; restore it from a backup, or have a broker's made from its logs: kafkalite registry rebuild"
        return RegistryError(text)


def _check_range(path: str, numbers: Iterable[int], most: int) -> None:
    for number in numbers:
        if not 0 <= number <= most:
            raise ValueError(f"the row of {path} holds {number}, which is not one of 0 to {most}")


def _row(path: str, node: DataNode) -> tuple[Any, ...]:
    return (
        path,
        node.data,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.child_creations,
        to_text(node.acl),
        node.aversion,
        node.ephemeral_owner,
    )


def copy_database(source: Path, target: Path) -> None:
    """Copy the files of a database that no process has open."""
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def read_copy(directory: Path) -> tuple[Tree, int]:
    """Load a database that no process has open from a copy, so that reading does not change it.

    Returns (tree, last zxid). Raises RegistryError if the database is unreadable.
    """
    tree = Tree()
    with tempfile.TemporaryDirectory(prefix="kafkalite-") as copies:
        copy_database(directory, Path(copies))
        database = NodeDatabase(Path(copies) / DATABASE_NAME)
        try:
            zxid, _ = database.load(tree)
        finally:
            database.close()
    return tree, zxid
