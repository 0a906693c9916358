"""Warnings of Spark's Python processes: lines in the shape of Spark's log, each text at most once a minute.

Spark runs the source and the sink in Python processes of its own. Their standard error goes to the JVM that started
them: the driver, or for tasks on other hosts the executor. Spark's own log goes there as well, in the pattern
``yy/MM/dd HH:mm:ss LEVEL Logger: text`` (log4j2-defaults.properties of Spark 4). So our lines have the same pattern:
``26/11/23 01:50:00 WARN KafkaliteSource: [subscribe=events] text``.

A text appears at most once a minute, with the number of times that it was suppressed. Numbers that are arguments of a
log call (attempts, seconds) do not make it another text. Several processes serve a query and log the same text. So
they share a record of it: files in Spark's directory of the application on this host, which Spark deletes with the
application. If that directory cannot be used, each process counts for itself.

A process keeps clients from query to query (:mod:`.connections`). Their threads may warn of brokers that only an
earlier query used. Such lines have the name ``KafkaliteClient`` and name no query.

Lines of level INFO, one for each task, appear with the environment variable ``KAFKALITE_LOG_LEVEL=INFO``; each of them,
because their numbers are what they are for.

An application that watches its queries (``watching.listener``) also receives the warnings of its host, see
``watching.post_box``. This module changes the logging of Spark's own processes only, never that of the application.
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
from typing import Final, TypeVar

from spark_kafkalite.spark.conditions import one_line
from spark_kafkalite.spark.watching.post_box import PostedWarning, post

SOURCE: Final = "KafkaliteSource"
SINK: Final = "KafkaliteSink"
CLIENT: Final = "KafkaliteClient"

_OURS: Final = "spark_kafkalite"
_LOG = logging.getLogger("spark_kafkalite.spark")
_AGAIN_AFTER_S: Final = 60.0
# Texts are told apart by so many slots, which bounds what is kept: two in one slot forget each other.
_SLOTS: Final = 1024
_Found = TypeVar("_Found")
_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_LONGEST_SUBJECT: Final = 200
LEVEL_VARIABLE: Final = "KAFKALITE_LOG_LEVEL"


def _key_of(text: str) -> hashlib.blake2b:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16)


class SaidBefore:
    """The texts that were logged on this host in the last minute, and how often each was suppressed since."""

    def __init__(self, directory: Path | None, now_s: Callable[[], float] = time.monotonic) -> None:
        """``directory`` is shared with other processes; None keeps it in this one. ``now_s`` must be one for all."""
        self._directory = directory
        self._now_s = now_s
        self._slots: dict[int, str] = {}

    def held_back(self, text: str, *, once: bool = False) -> int | None:
        """Return how often the text was suppressed since it was logged, or None if it must be suppressed now.

        ``once``: the text is logged once, and suppressed from then on.
        """
        return self._change(text, lambda kept, key: self._next(kept, key, once))

    def is_used_again(self, name: str, use: str) -> bool:
        """Note this use of a name. Return whether the last one that was noted was another one."""
        use_key = _key_of(use).hexdigest()

        def change(kept: str, key: str) -> tuple[str, bool]:
            before = kept.split()[:2]
            return f"{key} {use_key} 0", before[:1] == [key] and before != [key, use_key]

        return self._change(name, change)

    def _change(self, text: str, change: Callable[[str, str], tuple[str, _Found]]) -> _Found:
        """Have ``change`` make the new content of the text's slot of the old one and the text's key. Return what it
        has found."""
        key = _key_of(text)
        slot = int.from_bytes(key.digest()[:2], "big") % _SLOTS
        if self._directory is not None:
            try:
                return self._change_file(slot, key.hexdigest(), change)
            except OSError:
                # Spark deletes the directory at the application's end, and a disk may be full.
                self._directory = None
        self._slots[slot], found = change(self._slots.get(slot, ""), key.hexdigest())
        return found

    def _change_file(self, slot: int, key: str, change: Callable[[str, str], tuple[str, _Found]]) -> _Found:
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._directory / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            kept, found = change(os.pread(descriptor, 200, 0).decode("ascii", "replace"), key)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, kept.encode(), 0)
        finally:
            os.close(descriptor)
        return found

    def _next(self, kept: str, key: str, once: bool) -> tuple[str, int | None]:
        """Return the new content of the slot, and what :meth:`held_back` returns.

        The content is: the text's key, when it was logged, how often it was suppressed since.
        """
        now_s = self._now_s()
        fields = kept.split()
        if len(fields) != 3 or fields[0] != key:
            return f"{key} {now_s} 0", 0
        said_s, held = float(fields[1]), int(fields[2])
        if once or 0 <= now_s - said_s < _AGAIN_AFTER_S:
            return f"{key} {said_s} {held + 1}", None
        return f"{key} {now_s} 0", held


class WorkerLog(logging.Handler):
    """Writes the warnings of the process as lines like those of Spark's log.

    ``write`` receives a whole line, ``hand_on`` the warning in it.
    """

    def __init__(
        self,
        said: SaidBefore,
        write: Callable[[str], None],
        hand_on: Callable[[PostedWarning], None] = lambda warning: None,
    ) -> None:
        super().__init__(logging.INFO)
        self._said = said
        self._write = write
        self._hand_on = hand_on
        self.speak_of(SOURCE, "")

    def speak_of(self, speaker: str, subject: str) -> None:
        """Name ``speaker`` and ``subject`` in the lines of this thread from now on."""
        self._speaker = speaker
        self._subject = subject if len(subject) <= _LONGEST_SUBJECT else f"{subject[:_LONGEST_SUBJECT]}..."
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless its text was written within a minute."""
        try:
            is_own = record.thread == self._thread
            speaker, subject = (self._speaker, self._subject) if is_own else (CLIENT, "")
            if record.levelno < logging.WARNING:
                self._write_line(record, PostedWarning(speaker, subject, *_said(record, 0)))
                return
            text = f"{speaker} {subject} {_told_apart(record)}"
            held = self._said.held_back(text, once=getattr(record, "once", False))
            if held is not None:
                warning = PostedWarning(speaker, subject, *_said(record, held))
                self._write_line(record, warning)
                self._hand_on(warning)
        except Exception:
            self.handleError(record)

    def _write_line(self, record: logging.LogRecord, line: PostedWarning) -> None:
        moment = time.strftime("%y/%m/%d %H:%M:%S", time.localtime(record.created))
        about = f"[{line.subject}] " if line.subject else ""
        self._write(f"{moment} {line.level} {line.speaker}: {about}{line.text}\n")


def speak_of(speaker: str, subject: str) -> None:
    """Name ``speaker`` (:data:`SOURCE` or :data:`SINK`) and what it reads or writes in the lines of this process.

    A process of Spark does one thing at a time. In other processes this does nothing.
    """
    if not is_sparks_own():
        return
    _handler().speak_of(speaker, subject)


def say(notes: Iterable[str], *, once: bool = False) -> None:
    """Warn of what is wrong with a query's options. Call it once for each query.

    ``once``: log each note once in an application. Code that runs for each batch, and does not know the query, sets it.
    """
    for note in notes:
        _LOG.warning("%s", note, extra={"once": once})


def _said(record: logging.LogRecord, held: int) -> tuple[str, str]:
    """Return the level and the text of a line; ``held`` is how often the text was suppressed before."""
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text = f"{text}: {record.exc_info[1]!r}"
    more = f" (and {held} times more since it was last shown)" if held else ""
    return _LEVELS.get(record.levelname, record.levelname), f"{one_line(text)}{more}"


def _told_apart(record: logging.LogRecord) -> str:
    """Return the message with those arguments that make it another text: all but numbers."""
    arguments = record.args if isinstance(record.args, tuple) else (record.args,)
    return " ".join([str(record.msg), *(str(each) for each in arguments if not isinstance(each, (int, float)))])


def application_directory() -> Path | None:
    """Return Spark's directory of the application on this host, which Spark deletes at its end; None for none."""
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(directory) if directory else None


def is_sparks_own() -> bool:
    """Whether Spark has started this process to run the source or the sink in it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _handler() -> WorkerLog:
    logger = logging.getLogger(_OURS)
    for handler in logger.handlers:
        if isinstance(handler, WorkerLog):
            return handler
    directory = application_directory()
    said = SaidBefore(None if directory is None else directory / "kafkalite-said")
    handler = WorkerLog(said, _to_stderr, post)
    logger.addHandler(handler)
    if os.environ.get(LEVEL_VARIABLE, "").upper() == "INFO":
        logger.setLevel(logging.INFO)
    return handler


def _to_stderr(line: str) -> None:
    # Not sys.stderr: Spark's log of Python workers replaces it, and gets the record itself from the root logger.
    if sys.__stderr__ is not None:
        sys.__stderr__.write(line)
        sys.__stderr__.flush()
