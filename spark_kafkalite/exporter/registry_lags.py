"""Lags of groups whose offsets lie in the registry, below ``/consumers``: registry consumers, and dual commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.registry import RegistryOffsets, groups_in
from spark_kafkalite.client.registry_link import ZooKeeperLink
from spark_kafkalite.client.survey.survey import NOT_KNOWN, TopicOffsets
from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.exposition.text import Page, labels
from spark_kafkalite.registry.node_json import MalformedNode

_NAME: Final = "kafka_consumergroupzookeeper_lag_zookeeper"


class RegistryLags:
    """Reads the groups of one registry."""

    def __init__(self, connect: str) -> None:
        """``connect`` is ``host:port,...[/chroot]``; the session begins with the first scrape."""
        self._link = ZooKeeperLink(connect)

    def write(
        self,
        page: Page,
        ends: Mapping[str, TopicOffsets],
        shows_group: Callable[[str], bool],
        deadline: Deadline,
    ) -> None:
        """Write the lags, and whether the registry answered by the deadline. What was read before counts."""
        series: list[tuple[str, int]] = []
        answers = True
        try:
            for group in groups_in(self._link, deadline):
                if shows_group(group):
                    series += self._lags(group, ends, deadline)
        except RegistryError:
            answers = False
        page.family(_NAME, "gauge", "Records from the offset of a group in the registry to the high watermark.")
        page.extend(_NAME, series)
        text = "Whether the registry answered in this scrape."
        page.one("kafkalite_exporter_registry_answers", "gauge", text, answers)

    def _lags(self, group: str, ends: Mapping[str, TopicOffsets], deadline: Deadline) -> list[tuple[str, int]]:
        try:
            committed = RegistryOffsets(self._link, group).read(deadline=deadline)
        except (ConfigError, MalformedNode):
            # Another program's nodes.
            return []
        return [
            (labels(consumergroup=group, topic=topic, partition=partition), end - offset.offset)
            for (topic, partition), offset in committed.items()
            if topic in ends and (end := ends[topic].end(partition)) != NOT_KNOWN
        ]

    def close(self) -> None:
        """End the session."""
        if (session := self._link.close()) is not None:
            session.close()
