"""Topic ids in checkpoints, served by the application to the source processes of its queries.

Spark does not name its query to a source. The application's own process, which called ``install_listener``, knows the
checkpoints of all running queries. It listens at a Unix socket in a directory of the user's own
(``watching.post_box``). A request and its answer are one line of JSON each:

- ``{"do": "known", "at": DIGEST}`` is answered by ``{"topics": {TOPIC: [ID, ...]}}``, or ``{"topics": null}`` if no
  running query is at the offset with this digest.
- ``{"do": "remember", "at": DIGEST, "name": NAME, "source": TEXT, "topics": {TOPIC: ID}}`` is answered by
  ``{"written": BOOL}``.
- An error is answered by ``{"error": TEXT}``.

Several queries may be at the same offset. Then a topic counts as known only if all of them know it, and each of their
checkpoints gets the file: an id too many does no harm (:mod:`.checkpoint_ids`).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.spark.checkpoints import checkpoint_ids
from spark_kafkalite.spark.checkpoints.checkpoint_ids import TopicIds
from spark_kafkalite.spark.watching.post_box import ancestors, is_private, post_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafkalite.manifests.files import Files

# A source waits for an answer before it plans; Hadoop's client may have to ask a name node for each file.
_ANSWER_S: Final = 20.0
_LOOK_S: Final = 0.5
_REQUEST_S: Final = 5.0
_MOST_BYTES: Final = 64 << 20

T = TypeVar("T")


class ServiceError(KafkaliteError):
    """The application answers that it cannot read or write a checkpoint."""


def socket_path(jvm_pid: int) -> Path:
    """Return where the application of a JVM listens."""
    return post_directory() / f"{jvm_pid}.ids"


class ApplicationAccess:
    """The ids in the checkpoint of this process's query, through the application."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_this_process(cls) -> ApplicationAccess | None:
        """Return the access of a child or grandchild of the JVM, None if its application does not listen."""
        if not is_private(post_directory()):
            return None
        there = (path for pid in ancestors() if (path := socket_path(pid)).exists())
        return next(map(cls, there), None)

    def known(self, digest: str) -> TopicIds | None:
        """Return the known ids, None if no running query is at this offset. Raises OSError, ServiceError."""
        topics = self._asked({"do": "known", "at": digest})["topics"]
        return None if topics is None else {topic: frozenset(ids) for topic, ids in topics.items()}

    def remember(self, digest: str, name: str, source: str, topics: Mapping[str, str]) -> bool:
        """Have a source's file written, and return whether a query is at this offset. Raises OSError, ServiceError."""
        asked = {"do": "remember", "at": digest, "name": name, "source": source, "topics": dict(topics)}
        return bool(self._asked(asked)["written"])

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(_line_from(connection))
        if "error" in answer:
            raise ServiceError(answer["error"])
        return answer


class CheckpointService:
    """Answers the source processes of one JVM."""

    def __init__(self, path: Path, checkpoints: Callable[[], Iterator[Files]]) -> None:
        """``checkpoints`` returns those of the running queries. Raises OSError if nothing can listen there."""
        self._path = path
        self._checkpoints = checkpoints
        # A process of the same number may have been killed.
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(_LOOK_S)

    def answer_next(self) -> None:
        """Answer one source, or return after half a second without one."""
        with suppress(TimeoutError):
            connection, _ = self._socket.accept()
            self._answer(connection)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _answer(self, connection: socket.socket) -> None:
        # A source that does not send, or has ended, must not stop the others' answers.
        with connection, suppress(OSError):
            connection.settimeout(_REQUEST_S)
            try:
                answer = self._answer_to(json.loads(_line_from(connection)))
            except Exception as error:  # errors of the JVM have no common class, and the source is waiting
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer_to(self, request: Mapping[str, Any]) -> dict[str, Any]:
        digest = request["at"]
        if request["do"] == "known":
            found = self._of_each(lambda files: checkpoint_ids.known_ids(files, digest))
            return {"topics": _known_to_all(found) if found else None}
        at = self._of_each(lambda files: files if checkpoint_ids.is_at(files, digest) else None)
        for files in at:
            checkpoint_ids.write_ids(files, request["name"], request["source"], request["topics"])
        return {"written": bool(at)}

    def _of_each(self, look: Callable[[Files], T | None]) -> list[T]:
        """Return what was found in the checkpoints. One that cannot be read matters only if nothing was found."""
        found: list[T] = []
        failed: Exception | None = None
        for files in self._checkpoints():
            try:
                result = look(files)
            except Exception as error:  # as in _answer
                failed = error
                continue
            if result is not None:
                found.append(result)
        if failed is not None and not found:
            raise failed
        return found


def _known_to_all(found: list[TopicIds]) -> dict[str, list[str]]:
    topics = set.intersection(*(set(ids) for ids in found))
    return {topic: sorted(frozenset().union(*(ids[topic] for ids in found))) for topic in topics}


def _line_from(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        piece = connection.recv(65_536)
        if not piece or len(received) > _MOST_BYTES:
            raise ConnectionError("the other side closed the connection, or sends too much")
        received += piece
    return bytes(received)


# The application's sessions, and its one service: Spark's processes know only their JVM.
_SESSIONS: WeakSet[SparkSession] = WeakSet()
_services: dict[int, CheckpointService] = {}
_LOCK = threading.Lock()


def serve_checkpoints(spark: SparkSession, jvm_pid: int) -> None:
    """Answer the source processes of a session's queries, in a thread of its own, until the application ends.

    Raises OSError if nothing can listen.
    """
    with _LOCK:
        _SESSIONS.add(spark)
        if jvm_pid not in _services:
            service = _services[jvm_pid] = CheckpointService(socket_path(jvm_pid), _running_checkpoints)
            threading.Thread(target=_serve, args=(jvm_pid, service), name="kafkalite-topic-ids", daemon=True).start()


def _serve(jvm_pid: int, service: CheckpointService) -> None:
    while True:
        with _LOCK:
            # PySpark forgets the context when it stops.
            if all(each.sparkContext._jsc is None for each in _SESSIONS):
                del _services[jvm_pid]
                service.close()
                return
        service.answer_next()


def _running_checkpoints() -> Iterator[Files]:
    from spark_kafkalite.manifests.files import files_for

    for session in list(_SESSIONS):
        if session.sparkContext._jsc is not None:
            for query in session.streams.active:
                yield files_for(session, query._jsq.streamingQuery().resolvedCheckpointRoot())
