"""Which source the value of a setting comes from: the topic, one of the broker's layers, or the default.

In order of precedence: the topic's own override; this broker's dynamic setting; the dynamic default of all brokers; the
broker's file and command line (static); the default, which is the declaration's unless a layer has another. A layer may
name a topic setting by several broker settings (``log.retention.ms`` before ``log.retention.hours``); a higher layer
counts before a finer name.

Pure, and always computed again from all layers: no layer's change can undo another's, in whatever order they come
(KAFKA-9254).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from spark_kafkalite.log.topic_config import BROKER_LOG_SETTINGS, BROKER_SYNONYMS, TOPIC_SETTINGS, Synonym
from spark_kafkalite.settings import Setting, SettingGroup

# As DescribeConfigs numbers them.
SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT_BROKER: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_BROKER_LOGGER: Final = 6

_LONG_MAX = 2**63 - 1
_BROKER_LOG_SETTINGS = {setting.name: setting for setting in BROKER_LOG_SETTINGS}
# A broker setting, and all that give the same topic setting, in order of precedence.
_FAMILY = {
    synonym.name: synonyms[number:] for synonyms in BROKER_SYNONYMS.values() for number, synonym in enumerate(synonyms)
}
# The finest name of a family is shown with the value in force, the last one with the default in its own unit, as Kafka
# shows it (log.retention.hours=168).
_DEFAULTS = {
    synonym.name: TOPIC_SETTINGS[name].default // synonym.factor
    if synonym.factor != 1
    else TOPIC_SETTINGS[name].default
    for name, synonyms in BROKER_SYNONYMS.items()
    for synonym in (synonyms[0], synonyms[-1])
}


class ConfigLayer(NamedTuple):
    """Broker settings, checked, from one source."""

    source: int
    values: Mapping[str, Any]


class SettingSynonym(NamedTuple):
    """One place that a setting's value may come from."""

    name: str
    value: str | None
    source: int


class DescribedSetting(NamedTuple):
    """A setting as DescribeConfigs shows it; ``synonyms`` in order of precedence, the first is in force."""

    setting: Setting
    value: str | None
    source: int
    synonyms: tuple[SettingSynonym, ...]


def broker_defaults(layers: Sequence[ConfigLayer]) -> dict[str, Any]:
    """Return every topic setting's default on a broker with these settings. Raises ConfigError for a bad value."""
    defaults = TOPIC_SETTINGS.defaults()
    for name, synonyms in BROKER_SYNONYMS.items():
        for _, synonym, value in _found(synonyms, layers):
            defaults[name] = TOPIC_SETTINGS[name].parse(_scaled(value, synonym.factor))
            break
    return defaults


def _found(synonyms: Sequence[Synonym], layers: Sequence[ConfigLayer]) -> Iterator[tuple[int, Synonym, Any]]:
    """Yield where the layers name one of these settings, in order of precedence."""
    for source, values in layers:
        for synonym in synonyms:
            if values.get(synonym.name) is not None:
                yield source, synonym, values[synonym.name]


def _scaled(value: Any, factor: int) -> Any:
    if factor == 1:
        return value
    return -1 if value < 0 else min(value * factor, _LONG_MAX)


def _broker_synonyms(synonyms: Sequence[Synonym], layers: Sequence[ConfigLayer]) -> list[SettingSynonym]:
    return [
        SettingSynonym(synonym.name, _BROKER_LOG_SETTINGS[synonym.name].text(value), source)
        for source, synonym, value in _found(synonyms, layers)
    ]


def _has_default(synonyms: Sequence[SettingSynonym]) -> bool:
    return bool(synonyms) and synonyms[-1].source == SOURCE_DEFAULT


def describe_topic(
    overrides: Mapping[str, object], layers: Sequence[ConfigLayer], defaults: Mapping[str, Any]
) -> list[DescribedSetting]:
    """Return every topic setting with its value and where that comes from; wrong overrides do not count.

    ``defaults`` is what :func:`broker_defaults` makes of the layers.
    """
    parsed, _ = TOPIC_SETTINGS.parse_usable(overrides)
    values = {**defaults, **parsed}
    described = []
    for setting in TOPIC_SETTINGS:
        broker_names = BROKER_SYNONYMS.get(setting.name, ())
        synonyms = _broker_synonyms(broker_names, layers)
        if setting.name in parsed:
            synonyms.insert(0, SettingSynonym(setting.name, setting.text(parsed[setting.name]), SOURCE_TOPIC))
        default_name = broker_names[0].name if broker_names else setting.name
        if not _has_default(synonyms):
            synonyms.append(SettingSynonym(default_name, setting.text(setting.default), SOURCE_DEFAULT))
        described.append(
            DescribedSetting(setting, setting.text(values[setting.name]), synonyms[0].source, tuple(synonyms))
        )
    return described


def describe_broker(
    group: SettingGroup, values: Mapping[str, Any], layers: Sequence[ConfigLayer]
) -> list[DescribedSetting]:
    """Return every setting of a broker with its value, which ``values`` has, and where that comes from.

    Settings of a part, such as one listener, come last, and only those that are given.
    """
    described = []
    parts = [group[name] for name in values if group.part_of(name) is not None]
    for setting in (*group, *parts):
        synonyms = [
            SettingSynonym(synonym.name, group[synonym.name].text(value), source)
            for source, synonym, value in _found(_FAMILY.get(setting.name, (Synonym(setting.name),)), layers)
        ]
        default = _DEFAULTS.get(setting.name, setting.default)
        if default is not None and not _has_default(synonyms):
            synonyms.append(SettingSynonym(setting.name, setting.text(default), SOURCE_DEFAULT))
        source = synonyms[0].source if synonyms else SOURCE_DEFAULT
        value = values[setting.name] if values[setting.name] is not None else default
        described.append(DescribedSetting(setting, setting.text(value), source, tuple(synonyms)))
    return described
