"""The defaults of a broker in a cluster: what they are when, where they come from, and what is warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.cluster_defaults import weaknesses
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.log.config_sources import SOURCE_DEFAULT, SOURCE_STATIC_BROKER, describe_broker, describe_topic
from spark_kafkalite.model import BrokerEpoch, BrokerId
from spark_kafkalite.registry.cluster.cluster_state import (
    BrokerInfo,
    ClusterState,
    PartitionState,
    TopicState,
    diff,
)

ELSEWHERE = {"zookeeper.connect": "127.0.0.1:2181"}
NAMES = ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor")


def cluster(brokers: int, replicas: int = 0) -> ClusterState:
    """A cluster of so many live brokers, with a topic of so many replicas."""
    live = {number: BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(1)) for number in range(1, brokers + 1)}
    placed = tuple(BrokerId(number) for number in range(1, replicas + 1))
    topics = {"t": TopicState(b"i" * 16, {0: PartitionState(placed)}, {})} if replicas else {}
    return replace(ClusterState(), brokers=live, topics=topics)


def settings(given: dict[str, object], *clusters: ClusterState) -> DynamicConfig:
    """The settings after these clusters have been seen, one after the other."""
    config = DynamicConfig(BrokerConfig.from_properties(given))
    last = ClusterState()
    for each in clusters:
        config.cluster_changed(each, diff(last, each))
        last = each
    return config


def values(config: DynamicConfig) -> tuple[int, ...]:
    return tuple(config.current[name] for name in NAMES)


@pytest.mark.parametrize(
    ("given", "clusters", "expected"),
    [
        ({}, [cluster(1)], (1, 1, 1)),
        # Nobody joins a registry that is the broker's own.
        ({}, [cluster(3, 3)], (1, 1, 1)),
        (ELSEWHERE, [], (1, 1, 3)),
        (ELSEWHERE, [cluster(2, 2)], (1, 1, 3)),
        (ELSEWHERE, [cluster(1), cluster(2), cluster(3)], (3, 2, 3)),
        # One is away, and its replicas tell of it.
        (ELSEWHERE, [cluster(2, 3)], (3, 2, 3)),
        # Once there were three, no broker's death takes back what that promised.
        (ELSEWHERE, [cluster(3), cluster(1)], (3, 2, 3)),
        (ELSEWHERE | {NAMES[0]: 2, NAMES[1]: 1, NAMES[2]: 1}, [cluster(3, 3)], (2, 1, 1)),
    ],
)
def test_defaults(given: dict[str, object], clusters: list[ClusterState], expected: tuple[int, ...]) -> None:
    config = settings(given, *clusters)
    assert values(config) == expected
    assert config.current.topic_defaults["min.insync.replicas"] == expected[1]


def test_what_is_set_while_brokers_run_goes_before_and_hides_nothing() -> None:
    three = cluster(3)
    altered = replace(three, broker_configs={"1": {"min.insync.replicas": "1"}})
    config = settings(ELSEWHERE, three, altered)
    assert config.current["min.insync.replicas"] == 1
    config.cluster_changed(three, diff(altered, three))
    assert values(config) == (3, 2, 3)


def test_who_listens_hears_of_the_third_broker_once() -> None:
    config = DynamicConfig(BrokerConfig.from_properties(ELSEWHERE))
    heard: list[tuple[int, int]] = []
    config.add_listener(lambda old, new: heard.append((old["min.insync.replicas"], new["min.insync.replicas"])))
    for each in (cluster(2), cluster(3), cluster(4), cluster(2)):
        config.cluster_changed(each, diff(ClusterState(), each))
    assert heard == [(1, 2)]


def test_descriptions_show_what_is_in_force() -> None:
    config = settings(ELSEWHERE | {"default.replication.factor": 2}, cluster(3)).current
    shown = {each.setting.name: each for each in describe_broker(BROKER_SETTINGS, config.values, config.layers)}
    of_topic = {each.setting.name: each for each in describe_topic({}, config.layers, config.topic_defaults)}
    for found in (shown["min.insync.replicas"], of_topic["min.insync.replicas"]):
        assert (found.value, found.source) == ("2", SOURCE_DEFAULT)
        assert [tuple(each) for each in found.synonyms] == [("min.insync.replicas", "2", SOURCE_DEFAULT)]
    assert [tuple(each) for each in shown["default.replication.factor"].synonyms] == [
        ("default.replication.factor", "2", SOURCE_STATIC_BROKER),
        ("default.replication.factor", "3", SOURCE_DEFAULT),
    ]


@pytest.mark.parametrize(
    ("given", "brokers", "expected"),
    [
        ({}, 3, []),
        ({}, 1, ["the cluster has 1 broker, and 3 are needed"]),
        ({"min.insync.replicas": 1}, 3, ["min.insync.replicas=1 is less than 2"]),
        (
            {"default.replication.factor": 2},
            2,
            ["the cluster has 2 brokers, and 3 are needed", "default.replication.factor=2 is less than 3"],
        ),
        (
            {"unclean.leader.election.enable": "true", "high.watermark.requires.min.insync": "false"},
            4,
            [
                "unclean.leader.election.enable=true lets a replica lead that lacks records",
                "high.watermark.requires.min.insync=false commits what too few replicas have",
            ],
        ),
    ],
)
def test_what_stands_against_the_guarantee(given: dict[str, object], brokers: int, expected: list[str]) -> None:
    config = settings(ELSEWHERE | given, cluster(brokers))
    assert weaknesses(config.current.values, brokers) == expected
