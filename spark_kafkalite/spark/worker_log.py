"""How warnings of Spark's Python processes are shown: a line each in the shape of Spark's log, seldom the same one.

Spark runs the source and the sink in Python processes of its own, whose standard error is copied to that of the JVM
which started them: the driver's, and for tasks on other hosts the executor's. There Spark's own log is written as well,
in the pattern ``yy/MM/dd HH:mm:ss LEVEL Logger: text`` (log4j2-defaults.properties of Spark 4), so ours looks like it:
``26/11/23 01:50:00 WARN KafkaliteSource: [subscribe=events] text``.

A text is said at most once a minute, and then with how often it was held back. Numbers that are arguments of a log call
(attempts, seconds) do not make it another text. Several processes serve a query, and would each say it: so what was
said is kept in files in Spark's directory of the application on this host, which Spark deletes with it. Where that
cannot be used, each process counts for itself.

A process keeps clients from query to query (:mod:`.connections`), whose own threads complain of brokers that earlier
ones had to do with. They are said to be the client's, ``KafkaliteClient``, and of no query.

An application that watches its queries (:mod:`.listener`) gets what is said on its host, see :mod:`.warning_post`.
Only Spark's own processes are touched: the application's logging is the application's.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from spark_kafkalite.spark.conditions import one_line
from spark_kafkalite.spark.warning_post import PostedWarning, post

SOURCE: Final = "KafkaliteSource"
SINK: Final = "KafkaliteSink"
CLIENT: Final = "KafkaliteClient"

_OURS: Final = "spark_kafkalite"
_LOG = logging.getLogger("spark_kafkalite.spark")
_AGAIN_AFTER_S: Final = 60.0
# Texts are told apart by so many slots, which bounds what is kept: two in one slot forget each other.
_SLOTS: Final = 1024
_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_LONGEST_SUBJECT: Final = 200


class SaidBefore:
    """What was said on this host in the last minute, and how often it was held back since."""

    def __init__(self, directory: Path | None, now_s: Callable[[], float] = time.monotonic) -> None:
        """``directory`` is shared with other processes; None keeps it in this one. ``now_s`` must be one for all."""
        self._directory = directory
        self._now_s = now_s
        self._slots: dict[int, str] = {}

    def held_back(self, text: str, *, once: bool = False) -> int | None:
        """Return how often the text was held back since it was said, when it is due (again), or else None.

        ``once``: it is never due again.
        """
        key = hashlib.blake2b(text.encode(errors="replace"), digest_size=16)
        slot = int.from_bytes(key.digest()[:2], "big") % _SLOTS
        if self._directory is not None:
            try:
                return self._in_file(slot, key.hexdigest(), once)
            except OSError:
                # Spark deletes the directory at the application's end, and a disk may be full.
                self._directory = None
        kept, due = self._next(self._slots.get(slot, ""), key.hexdigest(), once)
        self._slots[slot] = kept
        return due

    def _in_file(self, slot: int, key: str, once: bool) -> int | None:
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._directory / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            kept, due = self._next(os.pread(descriptor, 200, 0).decode("ascii", "replace"), key, once)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, kept.encode(), 0)
        finally:
            os.close(descriptor)
        return due

    def _next(self, kept: str, key: str, once: bool) -> tuple[str, int | None]:
        """Return what to keep of the slot, and the answer. Kept is: the text's key, when it was said, held back."""
        now_s = self._now_s()
        fields = kept.split()
        if len(fields) != 3 or fields[0] != key:
            return f"{key} {now_s} 0", 0
        said_s, held = float(fields[1]), int(fields[2])
        if once or 0 <= now_s - said_s < _AGAIN_AFTER_S:
            return f"{key} {said_s} {held + 1}", None
        return f"{key} {now_s} 0", held


class WorkerLog(logging.Handler):
    """Writes what the process says as lines like those of Spark's log.

    ``write`` takes a whole line; ``hand_on`` takes what it says.
    """

    def __init__(
        self,
        said: SaidBefore,
        write: Callable[[str], None],
        hand_on: Callable[[PostedWarning], None] = lambda warning: None,
    ) -> None:
        super().__init__(logging.WARNING)
        self._said = said
        self._write = write
        self._hand_on = hand_on
        self.speak_of(SOURCE, "")

    def speak_of(self, speaker: str, subject: str) -> None:
        """Have what this thread says from now on be said by ``speaker``, of ``subject``."""
        self._speaker = speaker
        self._subject = subject if len(subject) <= _LONGEST_SUBJECT else f"{subject[:_LONGEST_SUBJECT]}..."
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless its text was written within a minute."""
        try:
            is_own = record.thread == self._thread
            speaker, subject = (self._speaker, self._subject) if is_own else (CLIENT, "")
            text = f"{speaker} {subject} {_told_apart(record)}"
            held = self._said.held_back(text, once=getattr(record, "once", False))
            if held is not None:
                warning = PostedWarning(speaker, subject, *_said(record, held))
                moment = time.strftime("%y/%m/%d %H:%M:%S", time.localtime(record.created))
                about = f"[{warning.subject}] " if warning.subject else ""
                self._write(f"{moment} {warning.level} {warning.speaker}: {about}{warning.text}\n")
                self._hand_on(warning)
        except Exception:
            self.handleError(record)


def speak_of(speaker: str, subject: str) -> None:
    """Begin what this process says with ``speaker``, :data:`SOURCE` or :data:`SINK`, and what it reads or writes.

    A process of Spark does one thing at a time. Elsewhere this does nothing.
    """
    if not _is_sparks_own():
        return
    _handler().speak_of(speaker, subject)


def say(notes: Iterable[str], *, once: bool = False) -> None:
    """Warn of what is wrong with a query's options. To be called once for each query.

    ``once``: for who is called for each batch and knows nothing of the query. It is said once in an application.
    """
    for note in notes:
        _LOG.warning("%s", note, extra={"once": once})


def _said(record: logging.LogRecord, held: int) -> tuple[str, str]:
    """Return the level and the text of what is written; ``held`` is how often it was not before."""
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text = f"{text}: {record.exc_info[1]!r}"
    more = f" (and {held} times more since it was last shown)" if held else ""
    return _LEVELS.get(record.levelname, record.levelname), f"{one_line(text)}{more}"


def _told_apart(record: logging.LogRecord) -> str:
    """Return what makes a text another one."""
    arguments = record.args if isinstance(record.args, tuple) else (record.args,)
    return " ".join([str(record.msg), *(str(each) for each in arguments if not isinstance(each, (int, float)))])


def _is_sparks_own() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _handler() -> WorkerLog:
    logger = logging.getLogger(_OURS)
    for handler in logger.handlers:
        if isinstance(handler, WorkerLog):
            return handler
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    said = SaidBefore(Path(directory, "kafkalite-said") if directory else None)
    handler = WorkerLog(said, _to_stderr, post)
    logger.addHandler(handler)
    return handler


def _to_stderr(line: str) -> None:
    # Not sys.stderr: Spark's log of Python workers replaces it, and gets the record itself from the root logger.
    if sys.__stderr__ is not None:
        sys.__stderr__.write(line)
        sys.__stderr__.flush()
