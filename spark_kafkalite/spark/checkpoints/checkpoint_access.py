"""How the process of a source reaches the checkpoint of its query, which Spark does not name to it.

There are two ways:

- The option ``checkpointLocation`` of the source names a directory of the driver's host.
- The application has called ``install_listener``. It knows the checkpoints of its queries, and reaches them with
  Hadoop's client. It finds the query by the offset at which the source goes on (:mod:`.checkpoint_service`).

Without either the ids of topics are not kept. A checkpoint that cannot be read or written is a warning: the query goes
on, as it does without ids.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.spark.checkpoints import checkpoint_ids
from spark_kafkalite.spark.checkpoints.checkpoint_ids import TopicIds, offset_digest
from spark_kafkalite.spark.conditions import INVALID_OPTION, option_error

if TYPE_CHECKING:
    from spark_kafkalite.spark.options.options import ReaderOptions

_LOG = logging.getLogger("spark_kafkalite.spark")

OPTION: Final = "checkpointLocation"
_RETRY_S: Final = 10.0
_WARN_AGAIN_S: Final = 60.0
# An application that was killed has left its socket, or one has ended just now.
_NO_APPLICATION: Final = (ConnectionRefusedError, FileNotFoundError)


class Access(Protocol):
    """The ids in the checkpoint of the query that is at some offset, which its digest identifies."""

    def known(self, digest: str) -> TopicIds | None:
        """Return the known ids, None if no checkpoint is at this offset."""
        ...

    def remember(self, digest: str, name: str, source: str, topics: Mapping[str, str]) -> bool:
        """Write a source's file, and return whether a checkpoint is at this offset."""
        ...


class LocalAccess:
    """Reads and writes a checkpoint in the driver's file system."""

    def __init__(self, path: str) -> None:
        from spark_kafkalite.manifests.files import local_files

        self._files = local_files(path)

    def known(self, digest: str) -> TopicIds | None:
        return checkpoint_ids.known_ids(self._files, digest)

    def remember(self, digest: str, name: str, source: str, topics: Mapping[str, str]) -> bool:
        if not checkpoint_ids.is_at(self._files, digest):
            return False
        checkpoint_ids.write_ids(self._files, name, source, topics)
        return True


class CheckpointIds:
    """The ids that one source of a query remembers in the query's checkpoint."""

    def __init__(self, options: ReaderOptions) -> None:
        self._source = str(options.subscription)
        self._name = checkpoint_ids.source_name(options.client["bootstrap.servers"], self._source)
        self._path = options.checkpoint_location
        self._written: dict[str, str] = {}
        self._retry_at_s = 0.0
        self._warned_at_s = -_WARN_AGAIN_S

    def known(self, position: Mapping[str, Any]) -> TopicIds:
        """Return the ids that the checkpoint has of topics; ``position`` is the offset at which the query goes on.

        Raises SparkConditionError if the option names a checkpoint that is not at this offset.
        """
        access = self._access()
        if access is None:
            return {}
        try:
            found = access.known(offset_digest(position))
        except _NO_APPLICATION:
            return {}
        except (KafkaliteError, OSError, ValueError) as error:
            self._warn("read", error)
            return {}
        if found is None and isinstance(access, LocalAccess):
            raise option_error(
                INVALID_OPTION,
                OPTION,
                self._path,
                "none of its newest batches ends where this query goes on, so it is the checkpoint of another query; "
                "give the checkpointLocation of this query's writeStream, or leave it out here",
            )
        return found or {}

    def remember(self, position: Mapping[str, Any], ids: Mapping[str, str]) -> None:
        """Write the ids of topics, if they are news; ``position`` is in the offset log, and was planned under them."""
        topics = {**self._written, **ids}
        now_s = time.monotonic()
        if topics == self._written or now_s < self._retry_at_s:
            return
        self._retry_at_s = now_s + _RETRY_S
        access = self._access()
        if access is None:
            return
        try:
            if not access.remember(offset_digest(position), self._name, self._source, topics):
                return
        except _NO_APPLICATION:
            return
        except (KafkaliteError, OSError, ValueError) as error:
            self._warn("write", error)
            return
        self._written, self._retry_at_s = topics, 0.0

    def _access(self) -> Access | None:
        if self._path is not None and (path := _local_checkpoint(self._path)) is not None:
            return LocalAccess(path)
        from spark_kafkalite.spark.checkpoints.checkpoint_service import ApplicationAccess

        found = ApplicationAccess.of_this_process()
        if found is None and self._path is not None:
            self._warn("reach", f"{self._path} is no checkpoint on this host, and the application has not called "
                       "install_listener, which reaches other file systems")  # fmt: skip
        return found

    def _warn(self, what: str, error: object) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_at_s < _WARN_AGAIN_S:
            return
        self._warned_at_s = now_s
        _LOG.warning(
            "cannot %s the topic ids in the query's checkpoint: %s; the query continues. If a topic is deleted and "
            "created again while the query does not run, only offsets that went back show it",
            what,
            error,
        )


def _local_checkpoint(path: str) -> str | None:
    """Return the directory that the option names, None if it is not one of this host's.

    Spark writes ``metadata`` before it makes the source. A path without a scheme may be one of HDFS.
    """
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return None
    local = parts.path if parts.scheme else path
    return local if os.path.exists(Path(local, "metadata")) else None
