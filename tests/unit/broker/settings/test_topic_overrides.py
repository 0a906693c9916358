"""The settings in force for topics: how much of what is stored for them is kept, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.settings import topic_overrides
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.topic_overrides import LONGEST_SETTINGS, TopicSettings
from spark_kafkalite.errors import InvalidConfig

LIST = "leader.replication.throttled.replicas"


@pytest.fixture
def topics() -> dict[str, Any]:
    return {}


@pytest.fixture
def settings(topics: dict[str, Any]) -> TopicSettings:
    view: Any = SimpleNamespace(state=SimpleNamespace(topics=topics))
    return TopicSettings(DynamicConfig(BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0"})), view)


def long_value(number: int) -> str:
    """Return a list that is as long as a topic's settings may be, and differs from that of another number."""
    return f"{number:06d}:1" + ",1:10" * ((LONGEST_SETTINGS - len(LIST) - 8) // 5)


def test_settings_that_are_too_long_are_refused_with_the_bound(settings: TopicSettings) -> None:
    settings.check({LIST: long_value(1)})
    with pytest.raises(InvalidConfig) as refused:
        settings.check({LIST: long_value(1), "retention.ms": "1234567"})
    length = len(LIST) + len(long_value(1)) + len("retention.ms1234567")
    assert str(refused.value).endswith(
        f"the settings of a topic have {length} characters, at most {LONGEST_SETTINGS} are possible; shorten {LIST}, "
        f"which has {len(LIST) + len(long_value(1))} of them"
    )


def test_what_is_kept_of_settings_is_bounded_by_its_length(
    topics: dict[str, Any], settings: TopicSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_overrides, "_MOST_KNOWN_CHARACTERS", 3 * LONGEST_SETTINGS)
    kept = []
    for number in range(5):
        topics["t"] = SimpleNamespace(config={LIST: long_value(number)})
        assert settings.config_of("t").leader_replication_throttled_replicas
        kept.append(len(settings._in_force))
    assert kept == [1, 2, 3, 1, 2]


def test_the_names_of_deleted_topics_with_wrong_settings_are_forgotten(
    topics: dict[str, Any], settings: TopicSettings, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = SimpleNamespace(config={"retention.ms": "soon"})
    topics["stays"] = wrong
    for number in range(1000):
        name = f"t-{number}"
        topics[name] = wrong
        settings.config_of("stays")
        settings.config_of(name)
        del topics[name]
    assert len(settings._reported) <= topic_overrides._FEWEST_SWEPT
    assert sum("topic stays " in record.getMessage() for record in caplog.records) == 1
