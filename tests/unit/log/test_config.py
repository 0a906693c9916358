from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log import config
from spark_kafkalite.log.config import BROKER_LOG_SETTINGS, TOPIC_SETTINGS, TopicConfig, broker_defaults
from spark_kafkalite.model import TimestampType


def test_defaults_are_kafkas() -> None:
    defaults = TopicConfig.from_properties()
    assert defaults.segment_bytes == 1 << 30
    assert defaults.retention_ms == 7 * 24 * 3_600_000
    assert defaults.max_message_bytes == 1_048_588
    assert defaults.cleanup_policy == ("delete",)
    assert defaults.visibility_policy == "committed"
    assert defaults.timestamp_type is TimestampType.CREATE_TIME
    assert not defaults.is_compacted


def test_overrides_win_over_broker_defaults_and_those_over_ours() -> None:
    defaults = broker_defaults({"log.segment.bytes": "5000", "log.retention.hours": "1", "message.max.bytes": 99})
    topic = TopicConfig.from_properties({"segment.bytes": "6000"}, defaults)
    assert (topic.segment_bytes, topic.retention_ms, topic.max_message_bytes) == (6000, 3_600_000, 99)


def test_finer_broker_setting_wins() -> None:
    properties = {"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}
    assert broker_defaults(properties)["retention.ms"] == 3
    del properties["log.retention.ms"]
    assert broker_defaults(properties)["retention.ms"] == 120_000


def test_unlimited_hours_stay_unlimited() -> None:
    assert broker_defaults({"log.retention.hours": "-1"})["retention.ms"] == -1


def test_compaction_and_log_append_time_are_recognised() -> None:
    topic = TopicConfig.from_properties({"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"})
    assert topic.is_compacted
    assert topic.timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"segment.byte": "1"}, "did you mean 'segment.bytes'"),
        ({"segment.bytes": "x"}, "segment.bytes='x'"),
        ({"segment.bytes": "13"}, "at least 14"),
        ({"cleanup.policy": "drop"}, "compact, delete"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "at most 1"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "must not be above"),
        ({"remote.storage.enable": "true"}, "not supported"),
        ({"visibility.policy": "soon"}, "committed, flushed"),
    ],
)
def test_bad_settings_are_errors_that_say_what_to_do(overrides: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TopicConfig.from_properties(overrides)


def test_every_default_passes_its_own_checks() -> None:
    for setting in TOPIC_SETTINGS:
        assert setting.parse(setting.text(setting.default)) == setting.default


def test_every_setting_is_explained_and_in_order() -> None:
    names = [setting.name for setting in TOPIC_SETTINGS]
    assert names == sorted(names)
    assert all(len(setting.doc) > 20 for setting in (*TOPIC_SETTINGS, *BROKER_LOG_SETTINGS))


def test_every_field_is_a_setting() -> None:
    assert {field.replace("_", ".") for field in TopicConfig.__slots__} <= {setting.name for setting in TOPIC_SETTINGS}


def test_broker_settings_have_unique_names_and_no_default() -> None:
    names = [setting.name for setting in BROKER_LOG_SETTINGS]
    assert len(names) == len(set(names))
    assert all(setting.default is None for setting in BROKER_LOG_SETTINGS)


def test_description_names_the_value_and_every_place_it_may_come_from() -> None:
    described = {
        each.setting.name: each
        for each in config.describe({"retention.ms": "5"}, {"log.retention.hours": "2", "log.segment.bytes": "4096"})
    }
    retention = described["retention.ms"]
    assert (retention.value, retention.source) == ("5", config.SOURCE_TOPIC)
    assert [tuple(each) for each in retention.synonyms] == [
        ("retention.ms", "5", config.SOURCE_TOPIC),
        ("log.retention.hours", "2", config.SOURCE_STATIC_BROKER),
        ("log.retention.ms", "604800000", config.SOURCE_DEFAULT),
    ]
    segment = described["segment.bytes"]
    assert (segment.value, segment.source) == ("4096", config.SOURCE_STATIC_BROKER)
    policy = described["cleanup.policy"]
    assert (policy.value, policy.source) == ("delete", config.SOURCE_DEFAULT)
