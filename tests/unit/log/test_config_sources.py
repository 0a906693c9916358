"""Where values come from: precedence, and that no order of changes undoes anything (KAFKA-9254)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.log.config_sources import (
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    SOURCE_TOPIC,
    ConfigLayer,
    broker_defaults,
    describe_broker,
    describe_topic,
)
from spark_kafkalite.log.topic_config import BROKER_SYNONYMS, TOPIC_SETTINGS, TopicConfig
from tests.seeds import SOAK

TOPIC_NAMES = ("retention.ms", "segment.bytes", "flush.ms", "cleanup.policy")
VALUES = {
    "retention.ms": st.integers(1, 10**9).map(str),
    "segment.bytes": st.integers(14, 10**9).map(str),
    "flush.ms": st.integers(0, 10**9).map(str),
    "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
}
WHERE = ("topic", "own", "by default")
# Somebody sets (or, with None, deletes) a setting somewhere.
change = st.sampled_from(TOPIC_NAMES).flatmap(
    lambda name: st.tuples(st.sampled_from(WHERE), st.just(name), st.none() | VALUES[name])
)


@settings(max_examples=500 if SOAK else 40)
@given(
    static=st.fixed_dictionaries({}, optional={name: VALUES[name] for name in TOPIC_NAMES}),
    changes=st.lists(change, max_size=20),
)
def test_no_change_of_one_source_undoes_another(static: dict[str, str], changes: list[tuple[str, str, str]]) -> None:
    """After every change each value is that of the highest source that has one, whatever came before."""
    config = BrokerConfig.from_properties({BROKER_SYNONYMS[name][0].name: value for name, value in static.items()})
    sources: dict[str, dict[str, str]] = {where: {} for where in WHERE}
    for where, name, value in changes:
        if value is None:
            sources[where].pop(name, None)
        else:
            sources[where][name] = value
        config = config.with_dynamic(*(_as_broker(sources[where]) for where in ("own", "by default")))
        found, _ = TopicConfig.in_force(sources["topic"], config.topic_defaults)
        described = {
            each.setting.name: each for each in describe_topic(sources["topic"], config.layers, config.topic_defaults)
        }
        for each in TOPIC_NAMES:
            setting = TOPIC_SETTINGS[each]
            wanted = [sources[where][each] for where in WHERE if each in sources[where]]
            wanted += [static[each]] if each in static else []
            wanted.append(setting.text(setting.default) or "")
            assert setting.text(getattr(found, each.replace(".", "_"))) == setting.text(setting.parse(wanted[0]))
            assert [synonym.value for synonym in described[each].synonyms] == [
                setting.text(setting.parse(value)) for value in wanted
            ]


def _as_broker(settings: dict[str, str]) -> dict[str, object]:
    return BROKER_SETTINGS.parse({BROKER_SYNONYMS[name][0].name: value for name, value in settings.items()})


def test_description_names_the_value_and_every_place_it_may_come_from() -> None:
    layers = (
        ConfigLayer(SOURCE_DYNAMIC_BROKER, {"log.retention.ms": 3}),
        ConfigLayer(SOURCE_DYNAMIC_DEFAULT_BROKER, {"log.retention.ms": 4, "log.segment.bytes": 2048}),
        ConfigLayer(SOURCE_STATIC_BROKER, {"log.retention.hours": 2, "log.segment.bytes": 4096}),
    )
    described = {
        each.setting.name: each for each in describe_topic({"retention.ms": "5"}, layers, broker_defaults(layers))
    }
    retention = described["retention.ms"]
    assert (retention.value, retention.source) == ("5", SOURCE_TOPIC)
    assert [tuple(each) for each in retention.synonyms] == [
        ("retention.ms", "5", SOURCE_TOPIC),
        ("log.retention.ms", "3", SOURCE_DYNAMIC_BROKER),
        ("log.retention.ms", "4", SOURCE_DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "2", SOURCE_STATIC_BROKER),
        ("log.retention.ms", "604800000", SOURCE_DEFAULT),
    ]
    segment = described["segment.bytes"]
    assert (segment.value, segment.source) == ("2048", SOURCE_DYNAMIC_DEFAULT_BROKER)
    policy = described["cleanup.policy"]
    assert (policy.value, policy.source) == ("delete", SOURCE_DEFAULT)


def test_a_brokers_setting_is_shown_as_it_is_in_force() -> None:
    config = BrokerConfig.from_properties({"log.retention.hours": "2", "num.partitions": "3"})
    described = {each.setting.name: each for each in describe_broker(BROKER_SETTINGS, config.values, config.layers)}
    retention = described["log.retention.ms"]
    assert (retention.value, retention.source) == ("7200000", SOURCE_STATIC_BROKER)
    assert [tuple(each) for each in retention.synonyms] == [
        ("log.retention.hours", "2", SOURCE_STATIC_BROKER),
        ("log.retention.ms", "604800000", SOURCE_DEFAULT),
    ]
    assert [tuple(each) for each in described["num.partitions"].synonyms] == [
        ("num.partitions", "3", SOURCE_STATIC_BROKER),
        ("num.partitions", "1", SOURCE_DEFAULT),
    ]
    # As Kafka shows them.
    assert [(described[name].value, described[name].source) for name in ("log.retention.hours", "log.roll.hours")] == [
        ("2", SOURCE_STATIC_BROKER), ("168", SOURCE_DEFAULT)
    ]  # fmt: skip
    assert described["log.roll.hours"].synonyms == (("log.roll.hours", "168", SOURCE_DEFAULT),)
    assert described["log.flush.scheduler.interval.ms"].value == str(2**63 - 1)
    # What has no default names none.
    assert described["log.retention.minutes"].synonyms == (("log.retention.hours", "2", SOURCE_STATIC_BROKER),)
    assert described["broker.rack"] == (BROKER_SETTINGS["broker.rack"], None, SOURCE_DEFAULT, ())
