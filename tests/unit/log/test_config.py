from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log.config_sources import SOURCE_STATIC_BROKER, ConfigLayer
from spark_kafkalite.log.config_sources import broker_defaults as defaults_of_layers
from spark_kafkalite.log.topic_config import BROKER_LOG_SETTINGS, TOPIC_SETTINGS, TopicConfig
from spark_kafkalite.model import TimestampType
from spark_kafkalite.settings import SettingGroup


def broker_defaults(properties: dict[str, str]) -> dict[str, object]:
    given = SettingGroup("broker", BROKER_LOG_SETTINGS).parse(properties)
    return defaults_of_layers([ConfigLayer(SOURCE_STATIC_BROKER, given)])


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
    defaults = broker_defaults({"log.segment.bytes": "5000", "log.retention.hours": "1", "message.max.bytes": "99"})
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


def test_a_topic_in_force_leaves_out_what_is_wrong_and_keeps_the_rest() -> None:
    overrides = {"retention.ms": "soon", "no.such": "1", "segment.bytes": "5000", "remote.storage.enable": "true"}
    found, problems = TopicConfig.in_force(overrides, TOPIC_SETTINGS.defaults())
    assert (found.segment_bytes, found.retention_ms) == (5000, 7 * 86_400_000)
    assert len(problems) == 2 and "soon" in problems[0] and "no.such" in problems[1]


def test_a_default_that_contradicts_a_topic_does_not_undo_it() -> None:
    found, problems = TopicConfig.in_force(
        {"min.compaction.lag.ms": "1000"}, {**TOPIC_SETTINGS.defaults(), "max.compaction.lag.ms": 500}
    )
    assert (found.min_compaction_lag_ms, found.max_compaction_lag_ms, problems) == (1000, 1000, [])
