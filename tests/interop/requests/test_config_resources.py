"""Every kind of resource that DescribeConfigs knows, asked in every form; and the levels of loggers, altered.

What can be, against our broker and Apache Kafka alike; what a topic's settings are is compared between the two.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.interop.support.raw_client import RawClient
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import wait_until

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
# Sources.
OF_TOPIC, OF_BROKER, BY_DEFAULT, IN_FILE, DEFAULT, OF_LOGGER = range(1, 7)


def describe(
    client: RawClient, kind: int, name: str, *keys: str, version: int = 4, texts: bool = True
) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=texts, include_documentation=texts)
    (result,) = client.call(request, version).results
    assert (result.error_code, result.resource_type, result.resource_name) == (0, kind, name), result.error_message
    return {entry.name: entry for entry in result.configs}


def alter(client: RawClient, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> None:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (result,) = client.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry), 1).responses
    assert result.error_code == 0, result.error_message


@pytest.fixture(scope="module")
def client(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as running:
        yield running


def synonyms(entry: Any) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


def test_a_broker_its_defaults_and_a_topic_show_the_same_setting(client: RawClient, topic: str) -> None:
    name = "log.flush.interval.ms"
    try:
        alter(client, BROKER, "", (name, SET, "7001"))
        alter(client, BROKER, "1", (name, SET, "7002"))
        # Apache Kafka answers before its broker obeys.
        wait_until(lambda: describe(client, BROKER, "1")[name].value == "7002", "the broker's own value")
        by_default = describe(client, BROKER, "")[name]
        assert (by_default.value, by_default.config_source, by_default.read_only) == ("7001", BY_DEFAULT, False)
        assert synonyms(by_default) == [(name, "7001", BY_DEFAULT)]
        own = describe(client, BROKER, "1")[name]
        assert (own.value, own.config_source) == ("7002", OF_BROKER)
        assert synonyms(own)[:2] == [(name, "7002", OF_BROKER), (name, "7001", BY_DEFAULT)]
        of_topic = describe(client, TOPIC, topic)["flush.ms"]
        assert (of_topic.value, of_topic.config_source) == ("7002", OF_BROKER)
        assert synonyms(of_topic)[:2] == [(name, "7002", OF_BROKER), (name, "7001", BY_DEFAULT)]
        # Java's ConfigEntry.ConfigType.LONG.
        assert {own.config_type, by_default.config_type, of_topic.config_type} == {5}
        assert own.documentation and by_default.documentation
    finally:
        alter(client, BROKER, "1", (name, DELETE, None))
        alter(client, BROKER, "", (name, DELETE, None))
    wait_until(lambda: name not in describe(client, BROKER, ""), "no value for all brokers")


@pytest.mark.parametrize("name", ["1", "01", "+1"])
def test_a_broker_by_its_number(client: RawClient, name: str) -> None:
    found = describe(client, BROKER, name, "log.retention.hours", "no.such.setting", texts=False)
    (entry,) = found.values()
    assert (entry.value, entry.read_only, entry.is_sensitive, entry.config_type) == ("168", True, False, 3)
    assert (entry.synonyms, entry.documentation) == ([], None)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_loggers_have_levels(client: RawClient, version: int) -> None:
    found = describe(client, LOGGER, "1", version=version)
    assert "root" in found and len(found) > 10
    for entry in found.values():
        assert entry.value in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "OFF")
        assert (entry.config_source, entry.read_only, entry.is_sensitive) == (OF_LOGGER, False, False)
        assert entry.synonyms == []
    assert describe(client, LOGGER, "1", "root", "no.such.logger", version=version).keys() == {"root"}


def test_levels_are_altered(client: RawClient) -> None:
    # One that no other test of either broker hears of.
    name = [each for each in describe(client, LOGGER, "1") if each.startswith(("spark_kafkalite.", "org.apache."))][-1]
    before = describe(client, LOGGER, "1", name)[name].value
    for level in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"):
        alter(client, LOGGER, "1", (name, SET, level))
        assert describe(client, LOGGER, "1", name)[name].value == level
    alter(client, LOGGER, "1", (name, SET, "FATAL"), dry=True)
    assert describe(client, LOGGER, "1", name)[name].value == "TRACE"
    alter(client, LOGGER, "1", (name, DELETE, None))
    assert describe(client, LOGGER, "1", name)[name].value == before


@pytest.mark.parametrize("kind", [METRICS, GROUP])
def test_client_metrics_and_groups_may_be_asked_for(client: RawClient, kind: int) -> None:
    # Apache Kafka shows defaults for any name; here there are no such settings.
    assert all(entry.config_source == DEFAULT for entry in describe(client, kind, "any-name").values())


def test_a_level_takes_effect_in_the_running_broker(tmp_path_factory: pytest.TempPathFactory) -> None:
    overrides = {"logging.level": "WARNING"}
    with BrokerProcess(tmp_path_factory.mktemp("levels") / "data", overrides=overrides) as broker:
        admin, client = Admin(bootstrap_servers=broker.bootstrap), RawClient(broker.bootstrap)
        with admin, client:
            for number, level in enumerate(("WARN", "INFO", "WARN", "DEBUG")):
                alter(client, LOGGER, "1", ("spark_kafkalite.broker", SET, level))
                admin.create_topic(f"topic-{number}", 1, 1)
                admin.delete_topics([f"topic-{number}"])
            told = re.compile(r"replicas: topic topic-(\d) has been deleted")
            wait_until(lambda: "3" in told.findall(broker.stderr_path.read_text()), "the deletion in the log")
            assert told.findall(broker.stderr_path.read_text()) == ["1", "3"]
        broker.restart()
        with RawClient(broker.bootstrap) as again:
            # Kept nowhere, as in Kafka.
            assert describe(again, LOGGER, "1")["spark_kafkalite.broker"].value == "WARN"


def test_a_password_is_not_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = "somebody:c2VjcmV0"
    overrides = {"registry.listener": "127.0.0.1:0", "registry.listener.digest": secret}
    with (
        BrokerProcess(tmp_path_factory.mktemp("secret") / "data", overrides=overrides) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        entry = describe(client, BROKER, "1")["registry.listener.digest"]
        assert (entry.value, entry.is_sensitive, entry.config_source, entry.config_type) == (None, True, IN_FILE, 9)
        assert synonyms(entry) == [("registry.listener.digest", None, IN_FILE)]


def changed_for_a_while(entries: dict[str, Any]) -> list[str]:
    """Return which settings of a topic are the broker's dynamic ones: tests of other processes set some."""
    return [
        name
        for name, entry in entries.items()
        # Apache Kafka 4.3 keeps this one among the dynamic defaults by itself.
        if entry.config_source in (OF_BROKER, BY_DEFAULT) and name != "min.insync.replicas"
    ]


@pytest.mark.kafka
def test_settings_of_topics_are_apache_kafkas(our_broker: BrokerProcess, apache_kafka: ApacheKafka) -> None:
    name = f"compared-settings-{next(itertools.count(1))}"
    found = []
    for bootstrap in (our_broker.bootstrap, apache_kafka.bootstrap):
        with Admin(bootstrap_servers=bootstrap) as admin, RawClient(bootstrap) as client:
            admin.create_topic(name, 1, 1, {"retention.bytes": "5000000", "cleanup.policy": "compact,delete"})
            wait_until(
                lambda client=client: not changed_for_a_while(describe(client, TOPIC, name)),  # type: ignore[misc]
                "no setting of the broker to be another test's",
            )
            found.append(describe(client, TOPIC, name))
    ours, kafkas = found
    assert ours.keys() - kafkas.keys() == {"flush.before.ack", "unclean.recovery.strategy", "visibility.policy"}
    assert kafkas.keys() <= ours.keys()
    for key, entry in kafkas.items():
        mine = ours[key]
        assert (mine.value, mine.config_type, mine.read_only, mine.is_sensitive) == (
            entry.value, entry.config_type, entry.read_only, entry.is_sensitive,
        ), key  # fmt: skip
        if key == "min.insync.replicas":
            # Apache Kafka 4.3 keeps this one among the dynamic defaults by itself.
            continue
        assert mine.config_source == entry.config_source, key
        # Where nothing is set Apache Kafka leaves some lists of synonyms empty.
        if entry.synonyms:
            assert synonyms(mine) == synonyms(entry), key


@pytest.mark.kafka
def test_settings_of_brokers_are_apache_kafkas(our_broker: BrokerProcess, apache_kafka: ApacheKafka) -> None:
    with RawClient(our_broker.bootstrap) as mine, RawClient(apache_kafka.bootstrap) as theirs:
        ours, kafkas = describe(mine, BROKER, "1"), describe(theirs, BROKER, "1")
    common = ours.keys() & kafkas.keys()
    assert len(common) > 70
    types = {key: (ours[key].config_type, kafkas[key].config_type) for key in common}
    assert {key for key, (own, other) in types.items() if own != other} == {
        "listener.security.protocol.map",  # a list here
        "offsets.topic.replication.factor",  # a short there
        "sasl.kerberos.principal.to.local.rules",  # a list there, which splits rules at their own commas
        "sasl.oauthbearer.jwt.validator.class",  # a class there; none is loaded here
        "sasl.server.callback.handler.class",
    }
    differing = {key for key in common if ours[key].read_only != kafkas[key].read_only}
    # Those of TLS and SASL change in a running broker with the name of a listener in front, as Kafka's do too.
    of_listeners = {key for key in differing if key.startswith(("ssl.", "sasl."))}
    assert all(ours[key].read_only for key in of_listeners)
    assert differing - of_listeners == {
        "listeners",
        "listener.security.protocol.map",  # neither can be changed in a running broker here
        "offsets.retention.minutes",  # can be changed here
    }
    assert {key for key in common if ours[key].is_sensitive != kafkas[key].is_sensitive} == set()
    assert all(re.search(r"\S", entry.documentation or "") for entry in ours.values())
