"""Logs in a log directory that could not be opened (disk full, no descriptors, misplaced files) and are tried again.

Their files stay as they are, checkpoints go on naming them with what the start found (without its log start a log would
show deleted records again), and opening them is tried again. The broker decides how many logs may be open at once
(:class:`LogLimit`); at a start the internal topics' come first, because groups need them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.loading.loader import FoundLog
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition

logger = logging.getLogger(__name__)

# The share of the limit at which a warning comes, and the one below which the next may come.
_WARNED_AT: Final = 0.8
_ARMED_AGAIN_BELOW: Final = 0.75


class LogLimit(NamedTuple):
    """How many logs may be open at once, why no more, and what to do before there are so many."""

    most: int
    reason: str
    remedy: str


class Unopened:
    """The logs that exist and are not open, with the reason of each."""

    def __init__(self, limit: LogLimit | None = None) -> None:
        """``limit`` None means that any number may be open."""
        self._limit = limit
        self._warned = False
        self._logs: dict[TopicPartition, tuple[FoundLog, str]] = {}
        # Those that the disk does not let be read, though it is written: a bad sector is in them.
        self._unreadable: set[TopicPartition] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._logs

    def __iter__(self) -> Iterator[FoundLog]:
        return (found for found, _ in self._logs.values())

    def add(self, found: FoundLog, reason: str, *, is_unreadable: bool = False) -> None:
        """Note a log that could not be opened, and log why, unless that was done before.

        ``is_unreadable``: the log itself cannot be read, and nothing else is in its way.
        """
        (self._unreadable.add if is_unreadable else self._unreadable.discard)(found.key)
        known = self._logs.get(found.key)
        self._logs[found.key] = found, reason
        if known is None or known[1] != reason:
            logger.error("%s is not served: %s", found.key, reason)

    def discard(self, key: TopicPartition) -> FoundLog | None:
        """Forget a log that is open by now, or gone; return what was found of it."""
        self._unreadable.discard(key)
        entry = self._logs.pop(key, None)
        return entry[0] if entry is not None else None

    def found(self, key: TopicPartition) -> FoundLog:
        """Return what the start found of a log. KeyError when it is not here."""
        return self._logs[key][0]

    def reason(self, key: TopicPartition) -> str:
        """Return why a log is not open. KeyError when it is not here."""
        return self._logs[key][1]

    def is_unreadable(self, key: TopicPartition) -> bool:
        """Return whether a log is not open because its own files cannot be read."""
        return key in self._unreadable

    def in_directory(self, log_dir: str) -> dict[TopicPartition, FoundLog]:
        """Return those that lie in one log directory."""
        return {key: found for key, (found, _) in self._logs.items() if found.log_dir == log_dir}

    def within_limit(self, found: Sequence[FoundLog]) -> list[FoundLog]:
        """Return the logs that may be opened at a start; the others are noted here."""
        self._warn_if_near(len(found))
        if self._limit is None or len(found) <= self._limit.most:
            return list(found)
        ordered = sorted(found, key=lambda each: each.key.topic not in INTERNAL_TOPICS)
        left = ordered[self._limit.most :]
        for each in left:
            self._logs[each.key] = each, f"the log {each.path} stays closed: {self._limit.reason}"
        logger.error(
            "%d of %d logs stay closed, the first of them %s: %s",
            len(left), len(found), left[0].path, self._limit.reason,
        )  # fmt: skip
        return ordered[: self._limit.most]

    def check_limit(self, what: object, open_logs: int) -> None:
        """Raise KafkaStorageError (56) when no further log may be opened; ``what`` names it."""
        if self._limit is not None and open_logs >= self._limit.most:
            raise KafkaStorageError(f"{what} stays closed: {self._limit.reason}")
        self._warn_if_near(open_logs + 1)

    def _warn_if_near(self, open_logs: int) -> None:
        """Warn once while so many logs are open that the limit is near."""
        if self._limit is None or self._warned == (open_logs >= _WARNED_AT * self._limit.most):
            return
        if not self._warned:
            logger.warning(
                "this broker hosts %d partitions, and cannot host more than %d: it refuses new ones then; %s",
                open_logs, self._limit.most, self._limit.remedy,
            )  # fmt: skip
            self._warned = True
        elif open_logs < _ARMED_AGAIN_BELOW * self._limit.most:
            self._warned = False
