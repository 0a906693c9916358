"""The embedded registry: the data tree in this process, its persistent part in one SQLite file.

One writer thread owns the tree and the database. It takes every operation that waits, applies them in order, writes the
changed nodes in one SQLite transaction (group commit), and only then completes the futures and calls the watches, in
the order of the transactions. So whatever an answer or an event shows is on disk, reads included.

Sessions of this process and their ephemeral nodes end with it and are never stored. Those of other processes are kept
over a restart when the owner asks for it (``keep_sessions``), as ZooKeeper keeps them.

If a commit finds no room on the disk, the owner is asked to make some (``make_room``). If that does not help, the tree
takes the round back and each of its operations is tried alone: what does not fit fails with OutOfRoom and has not
happened, the others succeed. If a commit fails in any other way the tree is ahead of a disk that cannot be trusted, so
the registry stops for good: every waiting and later operation fails and every session is LOST.

``registry.lock`` (flock) keeps a second process out. The callbacks rule of ``registry.store`` holds: watches, session
listeners and future callbacks run in the writer thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    Operation,
    OutOfRoom,
    SessionExpired,
    SessionListener,
    SessionState,
    Watcher,
    WatchEvent,
    call_back,
)
from spark_kafkalite.registry.tree import private_files
from spark_kafkalite.registry.tree.acl import Identity, SetAcl
from spark_kafkalite.registry.tree.database import DATABASE_NAME, DatabaseFull, NodeDatabase
from spark_kafkalite.registry.tree.room import Room
from spark_kafkalite.registry.tree.tree import DataNode, KeptSession, Tree
from spark_kafkalite.registry.tree.zxid_note import NOTE_NAME, ZxidNote

_LOG = logging.getLogger(__name__)

LOCK_NAME: Final = "registry.lock"
# Operations answered by one commit, for how long these are run before it, and the events of them that wait for it: the
# first bounds memory, the second the wait of the first one, the third both.
_MAX_GROUP: Final = 2000
_MAX_GROUP_S: Final = 0.050
_MAX_GROUP_EVENTS: Final = 10_000


# Looks at what has been loaded, and its last zxid; raises RegistryError to have it left alone.
Check = Callable[[Tree, int], None]
# Gets what an operation returned, or the error that it raised.
Answer = Callable[[Any, BaseException | None], None]


class _Task:
    """One queued operation: what to do in the writer thread, and the callback for its answer."""

    __slots__ = ("answer", "error", "fired", "result", "run")

    def __init__(self, run: Callable[[], Any], answer: Answer) -> None:
        self.run = run
        self.answer = answer
        self.result: Any = None
        self.error: BaseException | None = None
        self.fired: list[tuple[Watcher, WatchEvent]] = []


class EmbeddedRegistry:
    """The tree, its database and its writer thread. One per directory; any number of sessions."""

    def __init__(
        self,
        directory: Path | str,
        clock: Clock = SYSTEM_CLOCK,
        make_room: Callable[[], bool] | None = None,
        check: Check | None = None,
        *,
        keep_sessions: bool = False,
    ) -> None:
        """Open or create the registry in ``directory``.

        ``keep_sessions``: sessions that :meth:`open_session` gets a KeptSession for are stored, and those that a former
        process has stored go on (:attr:`kept_sessions`); otherwise these end now.

        ``make_room`` is called in the writer thread when the disk is full; it returns whether another try can help.
        ``check`` sees what was loaded before anything is written.
        Raises RegistryError when another process has it open, the file is damaged, of an unknown format, or lacks
        commits that it had, and what ``check`` raises.
        """
        self.directory = Path(directory)
        self._clock = clock
        self._make_room = make_room
        self.keeps_sessions: Final = keep_sessions
        self._tree = Tree()
        self._zxid = 0
        self._last_session = 0
        self._failure: RegistryError | None = None
        # Who is told of the end of a session of this process, by its number.
        self._reports: dict[int, SessionListener] = {}
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        # Called in the writer thread after the answers and events of a commit, once for all of them.
        self.after_answers: list[Callable[[], None]] = []
        self._lock_fd = take_lock(self.directory)
        private_files.narrow(self.directory)
        self._note = ZxidNote(self.directory)
        self._room = Room(self.directory / DATABASE_NAME, time.monotonic)
        try:
            # It moves to the writer thread after loading; the two never use it at the same time.
            self._open(check)
        except RegistryError:
            os.close(self._lock_fd)
            raise
        self._thread = threading.Thread(target=self._write_loop, name="kafkalite-registry", daemon=True)
        self._thread.start()

    def _open(self, check: Check | None) -> None:
        path = self.directory / DATABASE_NAME
        wal_is_there = path.with_name(f"{DATABASE_NAME}-wal").exists()
        noted = self._note.read()
        if noted and not wal_is_there and not (path.exists() and path.stat().st_size):
            raise RegistryError(_lost_commits(path, "it is missing or empty", noted))
        self._database = NodeDatabase(path)
        self._zxid, self._last_session = self._database.load(self._tree)
        self._committed_zxid = self._zxid
        try:
            if self._zxid < noted:
                missing = "an older copy has been put in its place" if wal_is_there else f"{path.name}-wal is missing"
                raise RegistryError(_lost_commits(path, f"it ends with {self._zxid}: {missing}", noted))
            if check is not None:
                check(self._tree, self._zxid)
            self._database.create()
            if not self.keeps_sessions and self._tree.kept:
                self._database.forget_sessions(self._zxid)
                for session_id in list(self._tree.kept):
                    self._tree.close_session(session_id, self._zxid, self._clock.wall_ms())
                self._tree.settle()
                self._tree.drain()
                self._tree.drain_sessions()
        except RegistryError:
            self._database.close()
            raise

    def __repr__(self) -> str:
        return f"EmbeddedRegistry({str(self.directory)!r}, zxid={self._zxid}, nodes={len(self._tree.nodes)})"

    @property
    def last_zxid(self) -> int:
        """The number of the last transaction."""
        return self._zxid

    @property
    def committed_zxid(self) -> int:
        """The number of the last transaction that is on the disk. In any thread."""
        return self._committed_zxid

    @property
    def missing_room(self) -> str | None:
        """Why a commit did not fit on the disk within the last minute, None when all did. In any thread."""
        return self._room.missing

    def begin_session(self, report: SessionListener) -> int:
        """Open a session of this process and return its number; ``report`` is called when it is LOST.

        It lasts until expired, or the registry's end. Raises RegistryError when it cannot be opened.
        """
        opened: Future[int] = Future()

        def keep(opened: Future[int]) -> None:
            if opened.exception() is None:
                self._reports[opened.result()] = report

        # In the writer thread, for a failure right afterwards; and here, for whoever ends the session next.
        opened.add_done_callback(keep)
        self.submit(self.open_session, opened)
        opened.exception()
        keep(opened)
        return opened.result()

    def expire(self, session_id: int) -> Future[None]:
        """End a session: its ephemeral nodes go, and its listener gets LOST."""
        ended: Future[None] = Future()

        def end() -> None:
            if session_id in self._tree.sessions:
                self._zxid += 1
                self._tree.close_session(session_id, self._zxid, self._clock.wall_ms())

        def tell(ended: Future[None]) -> None:
            if report is not None and ended.exception() is None:
                self._reports.pop(session_id, None)
                report(SessionState.LOST)

        report = self._reports.get(session_id)
        ended.add_done_callback(tell)
        self.submit(end, ended)
        return ended

    def close(self) -> None:
        """End all sessions and release the directory. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> EmbeddedRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For the sessions -----------------------------------------------------------------------------------------------

    def submit(self, run: Callable[[], Any], future: Future[Any]) -> None:
        """Have ``run`` called in the writer thread and answer ``future`` after the commit."""
        self.submit_call(run, partial(_resolve, future))

    def submit_call(self, run: Callable[[], Any], answer: Answer) -> None:
        """As :meth:`submit`, for ten thousand calls a second: ``answer`` is called after the commit."""
        with self._closing:
            if not self._closed:
                self._queue.put(_Task(run, answer))
                return
        answer(None, SessionExpired(f"the registry {self.directory} is closed"))
        self._answered()

    def _answered(self) -> None:
        for told in self.after_answers:
            told()

    def open_session(self, identities: set[Identity] | None = None, kept: KeptSession | None = None) -> int:
        """Open a session without a store and return its number. Writer thread only.

        ``kept`` is what is stored of it, if this registry keeps sessions.
        """
        self._zxid += 1
        self._last_session += 1
        self._tree.open_session(self._last_session, identities, kept if self.keeps_sessions else None)
        return self._last_session

    def apply(self, operations: Sequence[Operation | SetAcl], session_id: int) -> list[Any]:
        """Apply one transaction. Writer thread only."""
        zxid = self._zxid + 1
        results = self._tree.apply(operations, session_id, zxid, self._clock.wall_ms())
        self._zxid = zxid
        return results

    @property
    def kept_sessions(self) -> dict[int, KeptSession]:
        """The stored sessions. Writer thread only, or before other threads use the registry."""
        return self._tree.kept

    @property
    def tree(self) -> Tree:
        """The tree. Writer thread only."""
        return self._tree

    # The writer thread ------------------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        stop = False
        while not stop:
            task = self._queue.get()
            group: list[_Task] = []
            before = self._zxid, self._last_session
            touched: set[str] = set()
            events = 0
            until_s = time.monotonic() + _MAX_GROUP_S
            while task is not None:
                group.append(task)
                touched |= self._run(task)
                events += len(task.fired)
                if len(group) >= _MAX_GROUP or events >= _MAX_GROUP_EVENTS or time.monotonic() >= until_s:
                    break
                try:
                    task = self._queue.get_nowait()
                except queue.Empty:
                    break
            else:
                stop = True
            self._finish_group(group, touched, *before)
            self._answered()
            # The requests are not to be kept until the next one comes.
            group.clear()
            task = None
        self._shut_down()

    def _run(self, task: _Task) -> set[str]:
        """Run one operation; return the paths that it has changed."""
        try:
            if self._failure is not None:
                raise self._failure
            task.result = task.run()
        except RegistryError as error:
            # Without its frames, which hold the task that holds the error: see ``collector``.
            task.error = error.with_traceback(None)
        except Exception as error:  # whatever it is belongs to the one who asked; the registry goes on
            task.error = error
        touched, task.fired = self._tree.drain()
        return touched

    def _finish_group(self, group: list[_Task], touched: set[str], zxid_before: int, last_session_before: int) -> None:
        """Commit what these operations have done, then call their watches and answer them."""
        if self._zxid != zxid_before and self._failure is None:
            try:
                self._commit(touched)
            except (DatabaseFull, MemoryError) as error:
                self._tree.roll_back()
                self._zxid, self._last_session = zxid_before, last_session_before
                if len(group) > 1:
                    for task in group:
                        task.result, task.error = None, None
                        before = self._zxid, self._last_session
                        self._finish_group([task], self._run(task), *before)
                    return
                group[0].fired = []
                group[0].error = OutOfRoom(self._room.note_missing(str(error) or "out of memory"))
            except Exception as error:  # DatabaseFailed, and whatever else leaves unknown what is on disk
                self._fail(error, group)
                return
            self._committed_zxid = self._zxid
            self._note.write(self._zxid)
            self._room.note_commit()
        self._tree.settle()
        for task in group:
            _deliver(task)

    def _commit(self, touched: set[str]) -> None:
        tree = self._tree
        saved: list[tuple[str, DataNode]] = []
        removed: list[str] = []
        for path in touched:
            node = tree.nodes.get(path)
            if node is not None and (not node.ephemeral_owner or node.ephemeral_owner in tree.kept):
                saved.append((path, node))
            else:
                # Also of one that is not stored: a stored one may have been in its place.
                removed.append(path)
        sessions = {session_id: tree.kept.get(session_id) for session_id in tree.drain_sessions()}
        while True:
            try:
                self._database.commit(saved, removed, self._zxid, self._last_session, sessions)
                return
            except DatabaseFull:
                if self._make_room is None or not self._make_room():
                    raise

    def _fail(self, error: Exception, group: list[_Task]) -> None:
        """Stop for good: the tree holds what the disk does not."""
        self._failure = ConnectionLoss(
            f"the registry {self.directory / DATABASE_NAME} cannot be written: {error}; repair or replace the disk, "
            "then restart the broker"
        )
        _LOG.critical("%s", self._failure)
        for task in group:
            task.error, task.fired = self._failure, []
            _deliver(task)
        for report in list(self._reports.values()):
            report(SessionState.LOST)

    def _shut_down(self) -> None:
        reports, self._reports = list(self._reports.values()), {}
        for report in reports:
            report(SessionState.LOST)
        self._database.close()
        self._note.close()
        os.close(self._lock_fd)


def _lost_commits(path: Path, what: str, noted: int) -> str:
    return (
        f"the registry {path} has lost commits: transaction {noted} was on its disk ({NOTE_NAME}), but {what}. Put "
        f"{path.name} and {path.name}-wal back together. If they are lost: for a broker's own registry run kafkalite "
        f"registry rebuild, which makes it from the logs. For a cluster's registry remove {path.with_name(NOTE_NAME)}, "
        "start it with what it has, and complete it from the logs of all brokers: kafkalite cluster recover-registry"
    )


def _deliver(task: _Task) -> None:
    """Call the watches that a task fired, then answer it."""
    for watcher, event in task.fired:
        call_back(watcher, event)
    try:
        task.answer(task.result, task.error)
    except Exception:
        _LOG.exception("a registry answer failed")


def _resolve(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def take_lock(directory: Path) -> int:
    """Lock the directory for this process and return the lock file's descriptor."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(private_files.DIRECTORY_MODE, exist_ok=True)
        lock_fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.FILE_MODE)
    except OSError as error:
        where = f" ({error.filename})" if error.filename != str(directory) else ""
        raise RegistryError(f"cannot use the registry directory {directory}: {error.strerror}{where}") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = "unknown"
        with contextlib.suppress(OSError):
            holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or holder
        os.close(lock_fd)
        raise RegistryError(
            f"the registry directory {directory} is in use by another process (pid {holder}): stop that broker or "
            "registry, or give this one a directory of its own (registry.dir of a broker, --data of a registry)"
        ) from None
    # For the message of a second process only: the lock itself is the kernel's and goes with this process.
    with contextlib.suppress(OSError):
        os.truncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    return lock_fd
