from __future__ import annotations

from typing import Any

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.group.settings import GroupConfig
from spark_kafkalite.errors import ConfigError


def group(**keywords: Any) -> GroupConfig:
    config = consumer_config({"bootstrap.servers": "h:1"}, {"group_id": "g", **keywords}).group
    assert config is not None
    return config


def test_defaults_are_those_of_kafkas_consumer() -> None:
    config = group()
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (45_000, 3_000)
    assert (config.max_poll_interval_ms, config.auto_commit_interval_ms) == (300_000, 5_000)
    assert config.auto_commit
    assert config.exclude_internal_topics
    assert config.group_instance_id is None
    assert [each.name for each in config.assignors] == ["range", "cooperative-sticky"]


@pytest.mark.parametrize(
    ("strategy", "cooperative"),
    [
        ("range,cooperative-sticky", False),
        ("cooperative-sticky", True),
        (["sticky"], False),
        ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", True),
    ],
)
def test_members_are_cooperative_only_with_cooperative_assignors(strategy: object, cooperative: bool) -> None:
    assert group(partition_assignment_strategy=strategy).is_cooperative is cooperative


def test_without_a_group_there_is_no_group() -> None:
    config = consumer_config({"bootstrap.servers": "h:1", "session.timeout.ms": 100_000}, {})
    assert config.group is None
    assert config.group_id is None


@pytest.mark.parametrize("setting", [{"enable_auto_commit": True}, {"group_instance_id": "i"}])
def test_what_only_a_group_can_do_needs_one(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"needs a group\.id"):
        consumer_config({"bootstrap.servers": "h:1"}, setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"heartbeat_interval_ms": 5_000, "session_timeout_ms": 5_000}, r"must be below session\.timeout\.ms=5000"),
        ({"partition_assignment_strategy": "fair"}, "must be one of range, roundrobin, sticky, cooperative-sticky"),
        ({"partition_assignment_strategy": ""}, "name at least one assignor"),
        ({"group_protocol": "consumer"}, "only the classic protocol is supported"),
        ({"max_poll_interval_ms": 0}, "must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        group(**setting)
