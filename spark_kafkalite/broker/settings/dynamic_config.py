"""The broker's settings in force: those altered at run time over those of its file.

:attr:`DynamicConfig.current` is replaced as a whole when the registry's settings of brokers change, or the cluster gets
its third broker (``cluster_defaults``), always computed again from all sources (KAFKA-9254). Listeners are notified in
the loop and apply the settings that they had read once. Code that reads ``current`` each time needs no listener.

When the file is read again (SIGHUP), its dynamic settings are taken up likewise (:meth:`DynamicConfig.file_changed`).

Another program may have written what is unknown, wrong, or not to be changed in a running broker: such a setting is
logged and left out, and the others hold. :meth:`DynamicConfig.check` is what keeps our own clients from that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.cluster_defaults import has_three_brokers
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log.topic_config import BROKER_SYNONYMS
from spark_kafkalite.redaction import shown_value
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState
from spark_kafkalite.registry.znodes import DEFAULT_ENTITY

logger = logging.getLogger(__name__)

ConfigListener = Callable[[BrokerConfig, BrokerConfig], None]
ConfigCheck = Callable[[BrokerConfig], None]

_FINER = {synonym.name: synonyms[0].name for synonyms in BROKER_SYNONYMS.values() for synonym in synonyms[1:]}


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What differed in a properties file that was read again.

    ``applied`` has the texts of old and new value by name. ``altered_elsewhere`` are dynamic settings whose value is
    that of the registry, whatever the file has.
    """

    applied: Mapping[str, tuple[str, str]]
    altered_elsewhere: Sequence[str]
    need_restart: Sequence[str]

    def text(self) -> str:
        """Return one line for the log; values that are secrets are not shown."""
        parts = []
        if self.applied:
            parts.append(
                "changed "
                + ", ".join(
                    f"{name}={shown_value(name, new)} (was {shown_value(name, old)})"
                    for name, (old, new) in self.applied.items()
                )
            )
        if self.altered_elsewhere:
            parts.append(f"{', '.join(self.altered_elsewhere)} as set by configs alter, which goes before the file")
        if self.need_restart:
            parts.append(f"a restart is needed for {', '.join(self.need_restart)}")
        return "; ".join(parts) or "nothing has changed"


class DynamicConfig:
    """See the module's text."""

    def __init__(self, static: BrokerConfig) -> None:
        self.current = static
        self._own: Mapping[str, str] = {}
        self._by_default: Mapping[str, str] = {}
        # Never taken back: a broker that is away for a while must not weaken what its topics promise.
        self._has_three = False
        self._listeners: list[ConfigListener] = []
        self._checks: list[ConfigCheck] = []

    def add_listener(self, listener: ConfigListener) -> None:
        """Have ``listener(old, new)`` called after each change, in the order of adding."""
        self._listeners.append(listener)

    def add_check(self, check: ConfigCheck) -> None:
        """Have ``check(config)`` called with the settings that a client's change would make; it raises ConfigError."""
        self._checks.append(check)

    def cluster_changed(self, new: ClusterState, change: ClusterChange) -> None:
        """Follow a change of the cluster."""
        old = self.current
        own = new.broker_configs.get(str(old.broker_id), {})
        by_default = new.broker_configs.get(DEFAULT_ENTITY, {})
        if (own, by_default) != (self._own, self._by_default):
            self._own, self._by_default = own, by_default
            self.current = self.current.with_dynamic(
                _usable(own, f"broker {old.broker_id}"), _usable(by_default, "all brokers by default")
            )
        if not self._has_three and old.zookeeper is not None and has_three_brokers(new, change.new_topics):
            self._has_three = True
            self.current = self.current.in_cluster_of_three()
        if self.current is old:
            return
        for listener in self._listeners:
            listener(old, self.current)

    def file_changed(self, file: BrokerConfig) -> FileChanges:
        """Take up the dynamic settings of a properties file that was read again, and return what differed.

        What is altered in the registry goes before the file still, as in Kafka. Raises ConfigError, and changes
        nothing, if the dynamic settings contradict those that need a restart.
        """
        old = self.current
        differing = {
            name
            for name in old.given.keys() | file.given.keys()
            if _given_or_default(old, name) != _given_or_default(file, name)
        }
        taken = {name for name in differing if is_dynamic(name)}
        given = {name: value for name, value in old.given.items() if name not in taken}
        new = old.with_given(given | {name: value for name, value in file.given.items() if name in taken})
        new.check()
        altered = self._own.keys() | self._by_default.keys()
        changes = FileChanges(
            applied={name: (_in_force(old, name), _in_force(new, name)) for name in sorted(taken - altered)},
            altered_elsewhere=sorted(taken & altered),
            need_restart=sorted(differing - taken),
        )
        self.current = new
        for listener in self._listeners:
            listener(old, new)
        return changes

    def values_of(self, entity: str) -> Mapping[str, Any]:
        """Return the settings in force of this broker, or of one that has none of its own (DEFAULT_ENTITY)."""
        if entity == DEFAULT_ENTITY:
            return self.current.with_dynamic({}, _dynamic(self._by_default)[0]).values
        return self.current.values

    def check(self, changed: Iterable[str], settings: Mapping[str, str], entity: str) -> None:
        """Raise ConfigError if these settings, in which those named in ``changed`` are new, cannot be an entity's.

        Earlier settings are not checked: another client's mistake must not be in the way.
        """
        changed = list(changed)
        fixed = [name for name in changed if name in BROKER_SETTINGS and not is_dynamic(name)]
        for name in changed:
            problem = _not_dynamic(name)
            if problem is not None:
                # Of an unknown one Kafka says nothing: it keeps it, for plug-ins.
                listed = f"Cannot update these configs dynamically: [{', '.join(fixed)}]; {problem}"
                raise ConfigError(problem, listed if name in fixed else None)
            if name in settings:
                BROKER_SETTINGS[name].parse(settings[name])
        usable, _ = _dynamic(settings)
        if entity == DEFAULT_ENTITY:
            for name in changed:
                if name in settings and BROKER_SETTINGS.part_of(name) is not None:
                    raise ConfigError(
                        f"{name} is a setting of one broker's listener: set it for each broker, not for all by default",
                        f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]",
                    )
            config = self.current.with_dynamic(_dynamic(self._own)[0], usable)
        else:
            config = self.current.with_dynamic(usable, _dynamic(self._by_default)[0])
        config.check_parts(changed)
        config.check()
        for check in self._checks:
            check(config)


def _given_or_default(config: BrokerConfig, name: str) -> object:
    """Return a setting's value by the file and the command line alone; None where they leave it to other settings."""
    return config.given.get(name, BROKER_SETTINGS[name].default)


def _in_force(config: BrokerConfig, name: str) -> str:
    return BROKER_SETTINGS[name].text(config.values.get(name)) or ""


def is_dynamic(name: str) -> bool:
    """Return whether a running broker takes changes of this setting."""
    return name in BROKER_SETTINGS and BROKER_SETTINGS[name].dynamic


def _not_dynamic(name: str) -> str | None:
    """Return why a setting cannot be changed in a running broker, None when it can."""
    if name not in BROKER_SETTINGS:
        return f"unknown broker setting {name!r}{BROKER_SETTINGS.hint(name)}"
    if is_dynamic(name):
        return None
    instead = f"; change {_FINER[name]} instead" if name in _FINER else ""
    prefix = BROKER_SETTINGS.prefix
    if prefix is not None and name in prefix.dynamic:
        instead = f"; {prefix.text}LISTENER.{name} can be changed"
    return f"{name} is read-only: it cannot be updated dynamically, only in the broker's file with a restart{instead}"


def _dynamic(settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the parsed values of the settings that can be followed, and what is wrong with the others."""
    wrong = {name: problem for name in settings if (problem := _not_dynamic(name)) is not None}
    usable, problems = BROKER_SETTINGS.parse_usable(
        {name: value for name, value in settings.items() if name not in wrong}
    )
    return usable, [*wrong.values(), *problems]


def _usable(settings: Mapping[str, str], whose: str) -> dict[str, Any]:
    usable, problems = _dynamic(settings)
    for problem in problems:
        logger.warning("ignoring a setting of %s in the registry: %s", whose, problem)
    return usable
