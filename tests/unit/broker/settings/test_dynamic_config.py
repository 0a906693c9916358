"""The broker's settings in force, as the registry's nodes come and go."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, diff
from spark_kafkalite.registry.znodes import DEFAULT_ENTITY

EMPTY = ClusterState()


def given(own: dict[str, str], by_default: dict[str, str]) -> ClusterState:
    return replace(EMPTY, broker_configs={"1": own, DEFAULT_ENTITY: by_default, "2": {"log.retention.ms": "2"}})


def changed(config: DynamicConfig, cluster: ClusterState) -> None:
    config.cluster_changed(cluster, diff(EMPTY, cluster))


@pytest.fixture
def config() -> DynamicConfig:
    return DynamicConfig(BrokerConfig.from_properties({"log.retention.hours": "1", "max.connections": "9"}))


def test_own_settings_go_before_those_of_all_and_those_before_the_file(config: DynamicConfig) -> None:
    seen: list[tuple[int, int]] = []
    config.add_listener(lambda old, new: seen.append((old["log.retention.ms"], new["log.retention.ms"])))
    retention = "log.retention.ms"
    for own, by_default in (
        ({}, {retention: "7"}),
        ({retention: "8"}, {retention: "7"}),
        ({retention: "8"}, {}),
        ({}, {}),
    ):
        changed(config, given(own, by_default))
    assert seen == [(3_600_000, 7), (7, 8), (8, 8), (8, 3_600_000)]
    assert config.current.topic_defaults["retention.ms"] == 3_600_000
    # Nothing changed: nobody hears of it.
    changed(config, given({}, {}))
    assert len(seen) == 4


def test_what_is_wrong_is_left_out_and_logged(config: DynamicConfig, caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"log.retention.ms": "soon", "log.dirs": "/x", "no.such": "1", "max.connections": "5"}
    with caplog.at_level(logging.WARNING):
        changed(config, given(wrong, {"log.segment.bytes": "1", "log.flush.interval.ms": "4"}))
    current = config.current
    assert (current["max.connections"], current["log.flush.interval.ms"]) == (5, 4)
    assert (current["log.retention.ms"], current["log.segment.bytes"]) == (3_600_000, 1 << 30)
    assert current.log_dirs == BrokerConfig.from_properties({}).log_dirs
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert sum("of broker 1 in the registry" in text for text in texts) == 3


def test_contradictions_of_other_programs_do_not_stop_the_broker(config: DynamicConfig) -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}
    changed(config, given(lags, {}))
    assert config.current["log.cleaner.min.compaction.lag.ms"] == 9
    with pytest.raises(ConfigError, match="must not be above"):
        config.check(["log.retention.ms"], {**lags, "log.retention.ms": "1"}, "1")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"log.retention.hours": "1"}, r"log\.retention\.hours is read-only: .*; change log\.retention\.ms instead"),
        ({"broker.id": "2"}, r"broker\.id is read-only"),
        ({"node.id": "2"}, r"node\.id is read-only"),
        ({"log.retenton.ms": "2"}, r"did you mean 'log\.retention\.ms'"),
        ({"log.retention.ms": "x"}, "not a valid long"),
    ],
)
@pytest.mark.parametrize("entity", ["1", DEFAULT_ENTITY])
def test_what_may_not_be_set_says_why(config: DynamicConfig, settings: dict[str, str], text: str, entity: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config.check(settings, settings, entity)
    # What was there before is in nobody's way.
    config.check([], settings, entity)


def test_which_settings_are_dynamic() -> None:
    dynamic = {setting.name for setting in BROKER_SETTINGS if setting.dynamic}
    assert {"log.retention.ms", "message.max.bytes", "max.connections", "log.visibility.policy"} < dynamic
    assert not {"log.retention.hours", "log.roll.hours", "log.dirs", "listeners", "num.partitions"} & dynamic


def read_again(**settings: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})


def test_a_file_that_is_read_again_changes_what_is_dynamic_and_names_the_rest(config: DynamicConfig) -> None:
    seen: list[int] = []
    config.add_listener(lambda _, new: seen.append(new["log.retention.ms"]))
    changes = config.file_changed(read_again(log_retention_hours="2", log_retention_ms="5", num_io_threads="3"))
    assert config.current["log.retention.ms"] == 5 and seen == [5]
    assert (config.current["num.io.threads"], config.current["max.connections"]) == (3, 2**31 - 1)
    # One that left the file has its default again; one that needs a restart stays as it was.
    assert config.current.given["log.retention.hours"] == 1
    assert changes.text() == (
        "changed log.retention.ms=5 (was 3600000), max.connections=2147483647 (was 9), num.io.threads=3 (was "
        f"{BROKER_SETTINGS['num.io.threads'].default}); a restart is needed for log.retention.hours"
    )
    # What needs a restart is named until there is one.
    again = config.file_changed(read_again(log_retention_hours="2", log_retention_ms="5", num_io_threads="3"))
    assert again.text() == "a restart is needed for log.retention.hours"


def test_what_is_altered_in_the_registry_goes_before_the_file_that_is_read_again(config: DynamicConfig) -> None:
    changed(config, given({"max.connections": "5"}, {}))
    changes = config.file_changed(read_again(log_retention_hours="1", max_connections="7"))
    assert config.current["max.connections"] == 5
    assert changes.text() == "max.connections as set by configs alter, which goes before the file"
    changed(config, EMPTY)
    assert config.current["max.connections"] == 7


def test_a_file_that_contradicts_what_needs_a_restart_changes_nothing() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "4", "log.cleaner.max.compaction.lag.ms": "8"}
    config = DynamicConfig(BrokerConfig.from_properties(lags))
    changed(config, given({"log.cleaner.max.compaction.lag.ms": "5"}, {}))
    before = config.current
    with pytest.raises(ConfigError, match="must not be above"):
        config.file_changed(read_again(log_cleaner_min_compaction_lag_ms="6", log_cleaner_max_compaction_lag_ms="8"))
    assert config.current is before


def test_secrets_of_a_file_that_is_read_again_are_not_shown(config: DynamicConfig) -> None:
    changes = config.file_changed(
        read_again(
            log_retention_hours="1", max_connections="9", zookeeper_connect="h:1", zookeeper_digest="user:hidden-word"
        )
    )
    assert changes.text() == "a restart is needed for zookeeper.connect, zookeeper.digest"


LOCATION = "listener.name.out.ssl.keystore.location"


@pytest.fixture
def with_listeners() -> DynamicConfig:
    settings = {"listeners": "PLAINTEXT://h:1,OUT://h:2", "listener.security.protocol.map": "OUT:SSL"}
    return DynamicConfig(BrokerConfig.from_properties(settings))


@pytest.mark.parametrize(
    ("name", "entity", "message"),
    [
        (
            "ssl.keystore.location",
            "1",
            r"read-only: .*; listener\.name\.LISTENER\.ssl\.keystore\.location can be changed",
        ),
        ("listener.name.out.ssl.key.password", "1", "read-only: it cannot be updated dynamically"),
        ("listener.name.ot.ssl.keystore.location", "1", "there is no listener 'ot'; did you mean 'out'"),
        (LOCATION, DEFAULT_ENTITY, "a setting of one broker's listener: set it for each broker"),
    ],
)
def test_which_settings_of_a_listener_cannot_be_altered(
    with_listeners: DynamicConfig, name: str, entity: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        with_listeners.check([name], {name: "/a"}, entity)


def test_a_setting_of_a_listener_is_altered_if_all_checks_pass(with_listeners: DynamicConfig) -> None:
    seen: list[object] = []

    def check(config: BrokerConfig) -> None:
        seen.append(config[LOCATION])
        if config[LOCATION] == "/bad":
            raise ConfigError("it cannot be used")

    with_listeners.add_check(check)
    with_listeners.check([LOCATION], {LOCATION: "/good"}, "1")
    with pytest.raises(ConfigError, match="it cannot be used"):
        with_listeners.check([LOCATION], {LOCATION: "/bad"}, "1")
    assert seen == ["/good", "/bad"]
    # Whoever wrote it: what there is no listener for is in nobody's way.
    changed(with_listeners, given({"listener.name.gone.ssl.keystore.location": "/x", LOCATION: "/good"}, {}))
    assert with_listeners.current[LOCATION] == "/good"
    with_listeners.file_changed(with_listeners.current)
    with_listeners.check([LOCATION], {LOCATION: "/good"}, "1")
