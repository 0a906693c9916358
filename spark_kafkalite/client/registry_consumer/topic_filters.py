"""Topic filters: which topics a pattern includes.

The pattern is a regular expression over the whole name; a comma means "or", blanks and surrounding quotes are dropped.
It is registered as text, and every consumer of the group evaluates it. Kafka 0.8's consumers do so with Java's regular
expressions and ours with Python's: use the common part of both when they share a group.
Source: kafka.consumer.TopicFilter of Apache Kafka 0.8.2.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import ClassVar

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry.consumer_nodes import SubscriptionPattern


class TopicFilter:
    """A pattern and which topics it selects; made as :class:`Whitelist` or :class:`Blacklist`."""

    kind: ClassVar[SubscriptionPattern]

    def __init__(self, pattern: str) -> None:
        """Raises ConfigError when the pattern is no regular expression."""
        self.pattern = pattern.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            _compiled(self.pattern)
        except re.error as error:
            raise ConfigError(f"topic filter {pattern!r} is not a regular expression: {error}") from None

    def allows(self, topic: str) -> bool:
        """Whether topics of this name are read."""
        return allows(self.kind, self.pattern, topic)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pattern!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicFilter) and (self.kind, self.pattern) == (other.kind, other.pattern)

    def __hash__(self) -> int:
        return hash((self.kind, self.pattern))


class Whitelist(TopicFilter):
    """Lets topics through whose whole name matches."""

    kind = SubscriptionPattern.WHITE_LIST


class Blacklist(TopicFilter):
    """Lets topics through whose name does not match."""

    kind = SubscriptionPattern.BLACK_LIST


def allows(kind: SubscriptionPattern, pattern: str, topic: str) -> bool:
    """Whether a filter of this kind lets the topic through. Raises re.error for a pattern that Python cannot read."""
    matches = _compiled(pattern).fullmatch(topic) is not None
    return matches == (kind is SubscriptionPattern.WHITE_LIST)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
