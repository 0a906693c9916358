"""The settings in force for a topic: its own over this broker's defaults. Both are declared in ``log/topic_config.py``.

The one place that puts them together; logs, partitions, elections and handlers ask here. Needs neither the registry's
session nor the logs, so that it exists before both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import ConfigError, InvalidConfig
from spark_kafkalite.log.topic_config import BALANCED, TopicConfig
from spark_kafkalite.redaction import shown_name
from spark_kafkalite.registry.cluster.cluster_view import ClusterView

logger = logging.getLogger(__name__)

# Of all settings of a topic: room for the throttled replicas of 10,000 partitions.
LONGEST_SETTINGS: Final = 256 * 1024
# Most topics have the settings of some other one: what is kept of different ones, and their characters.
_MOST_KNOWN: Final = 1000
_MOST_KNOWN_CHARACTERS: Final = 64 * LONGEST_SETTINGS
# So many names of topics with wrong settings are kept at least before deleted ones are looked for.
_FEWEST_SWEPT: Final = 64


class TopicSettings:
    """See the module's text."""

    def __init__(self, settings: DynamicConfig, view: ClusterView) -> None:
        self._settings = settings
        self._view = view
        # What was found wrong with topics' settings in the registry, and when the names of deleted topics go next.
        self._reported: dict[str, list[str]] = {}
        self._swept_at = _FEWEST_SWEPT
        # Under these defaults: what overrides come to, and what is wrong with them.
        self._defaults: Mapping[str, object] | None = None
        self._in_force: dict[frozenset[tuple[str, str]], tuple[TopicConfig, list[str]]] = {}
        self._known_characters = 0

    def config_of(self, name: str) -> TopicConfig:
        """Return a topic's settings in force; the defaults for one that does not exist.

        What another program wrote into the registry may be wrong; then the wrong settings are left out, because a topic
        that exists must be served.
        """
        topic = self._view.state.topics.get(name)
        overrides = topic.config if topic is not None else {}
        config, problems = self._config_with(overrides)
        # Once, though each of its partitions asks.
        if problems and self._reported.get(name) != problems:
            self._reported[name] = problems
            self._sweep()
            for problem in problems:
                logger.warning("ignoring a setting of topic %s in the registry: %s", name, problem)
        return config

    def _sweep(self) -> None:
        """Forget deleted topics whenever as many names have come as were left."""
        if len(self._reported) >= self._swept_at:
            topics = self._view.state.topics
            self._reported = {name: problems for name, problems in self._reported.items() if name in topics}
            self._swept_at = max(2 * len(self._reported), _FEWEST_SWEPT)

    def allows_unclean_election(self, name: str) -> bool:
        """Return whether a replica that was not in sync may lead where the partition would have no leader."""
        return self.config_of(name).unclean_leader_election_enable

    def recovers_by_itself(self, name: str) -> bool:
        """Return whether the best log leads without an operator where nothing is lost by that (rule R18)."""
        return self.config_of(name).unclean_recovery_strategy == BALANCED

    def min_insync(self, name: str) -> int:
        """Return with how many in-sync replicas a topic's high watermark moves."""
        if not self._settings.current["high.watermark.requires.min.insync"]:
            return 1
        return self.config_of(name).min_insync_replicas

    def check(self, overrides: Mapping[str, object]) -> None:
        """Raise InvalidConfig (40) for topic settings that are unknown, have a bad value, or are too long together."""
        lengths = {name: len(name) + len(str(value)) for name, value in overrides.items()}
        if (length := sum(lengths.values())) > LONGEST_SETTINGS:
            longest = max(lengths, key=lambda name: lengths[name])
            raise InvalidConfig(
                f"the settings of a topic have {length} characters, at most {LONGEST_SETTINGS} are possible; shorten "
                f"{shown_name(longest)}, which has {lengths[longest]} of them"
            )
        try:
            TopicConfig.from_properties(overrides, self._settings.current.topic_defaults)
        except ConfigError as error:
            raise InvalidConfig(error.kafka_text) from error

    def _config_with(self, overrides: Mapping[str, str]) -> tuple[TopicConfig, list[str]]:
        defaults = self._settings.current.topic_defaults
        key = frozenset(overrides.items())
        found = self._in_force.get(key) if defaults is self._defaults else None
        if found is None:
            self._make_room(defaults, sum(len(name) + len(value) for name, value in key))
            found = self._in_force[key] = TopicConfig.in_force(overrides, defaults)
        return found

    def _make_room(self, defaults: Mapping[str, object], characters: int) -> None:
        self._known_characters += characters
        is_full = len(self._in_force) >= _MOST_KNOWN or self._known_characters > _MOST_KNOWN_CHARACTERS
        if defaults is not self._defaults or is_full:
            self._defaults = defaults
            self._in_force.clear()
            self._known_characters = characters
