"""Settings altered in a live broker: effective at once, persistent, nothing lost, and the errors are Kafka's.

What both brokers must do is in client/test_admin.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import ConfigChange
from spark_kafkalite.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.alter_configs import AlterableConfig as LegacyConfig
from spark_kafkalite.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.messages.incremental_alter_configs import AlterableConfig, IncrementalAlterConfigsRequest
from spark_kafkalite.wire.messages.incremental_alter_configs import AlterConfigsResource as Resource
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
ROLES = ("leader", "follower")


def resource(kind: int, name: str, configs: list[tuple[str, int, str | None]]) -> Resource:
    return Resource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=each, config_operation=operation, value=value) for each, operation, value in configs
        ],
    )


def legacy(name: str, configs: dict[str, str]) -> AlterConfigsResource:
    settings = [LegacyConfig(name=each, value=value) for each, value in configs.items()]
    return AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=settings)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"log.retention.hours": "48", "log.segment.bytes": "1000000"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


def made(admin: Admin, name: str, **settings: str) -> str:
    admin.create_topic(name, 1, 1, {key.replace("_", "."): value for key, value in settings.items()})
    return name


def sources(admin: Admin, name: str, **of: object) -> list[tuple[str | None, str]]:
    entry = admin.describe_configs(include_synonyms=True, **of)[name]  # type: ignore[arg-type]
    assert entry.source == entry.synonyms[0].source
    return [(synonym.value, synonym.source) for synonym in entry.synonyms]


def set_to(name: str, value: str) -> list[ConfigChange]:
    return [ConfigChange(name, "set", value)]


def test_the_four_operations(admin: Admin) -> None:
    topic = made(admin, "operations", retention_ms="5000", flush_ms="77")
    admin.incremental_alter_configs(
        [
            ConfigChange("retention.ms", "set", "6000"),
            ConfigChange("flush.ms", "delete"),
            ConfigChange("cleanup.policy", "append", "compact"),
        ],
        topic=topic,
    )
    found = admin.describe_configs(topic=topic)
    assert (found["retention.ms"].value, found["flush.ms"].source) == ("6000", "default")
    # What is appended to is the value in force, as in Kafka.
    assert (found["cleanup.policy"].value, found["cleanup.policy"].kind) == ("delete,compact", "list")
    admin.incremental_alter_configs([ConfigChange("cleanup.policy", "subtract", "delete")], topic=topic)
    admin.incremental_alter_configs([ConfigChange("cleanup.policy", "append", "compact")], topic=topic)
    assert admin.describe_configs(topic=topic)["cleanup.policy"].value == "compact"
    admin.alter_configs({"segment.ms": "999"}, topic=topic)
    found = admin.describe_configs(topic=topic)
    assert {name for name, entry in found.items() if entry.source == "topic"} == {"segment.ms"}
    admin.incremental_alter_configs(set_to("segment.ms", "1"), topic=topic, validate_only=True)
    assert admin.describe_configs(topic=topic)["segment.ms"].value == "999"


@pytest.mark.parametrize(
    ("of", "configs", "code", "text"),
    [
        ((TOPIC, "refusing"), [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42, "keys: retention.ms"),
        ((TOPIC, "refusing"), [("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
        ((TOPIC, "refusing"), [("retention.ms", 7, "1")], 42, "Unknown operations type 7; SET is 0"),
        ((TOPIC, "refusing"), [("retention.ms", APPEND, "1")], 40, "Can't APPEND to key retention.ms because its type"),
        ((TOPIC, "refusing"), [("no.such", SUBTRACT, "1")], 40, "Can't SUBTRACT to key no.such"),
        ((TOPIC, "refusing"), [("retenton.ms", SET, "1")], 40, "did you mean 'retention.ms'"),
        ((TOPIC, "refusing"), [("retention.ms", SET, "soon")], 40, "Invalid value soon for configuration retention.ms"),
        ((TOPIC, "refusing"), [("segment.bytes", SET, "3")], 40, "segment.bytes: Value must be at least 14"),
        ((TOPIC, "refusing"), [("cleanup.policy", APPEND, "burn")], 40, "cleanup.policy: String must be one of"),
        ((TOPIC, "refusing"), [("compression.gzip.level", SET, "0")], 40, "between 1 and 9 or equal to -1"),
        (
            (TOPIC, "refusing"),
            [("leader.replication.throttled.replicas", SET, "*,0:1")],
            40,
            "must be the literal '*' or a list of replicas",
        ),
        ((BROKER, "1"), [("follower.replication.throttled.rate", SET, "-1")], 42, "must be at least 0"),
        (
            (TOPIC, "refusing"),
            [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")],
            40,
            "min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
        ),
        ((TOPIC, "not-there"), [("retention.ms", SET, "1")], 3, "The topic 'not-there' does not exist."),
        ((TOPIC, "no/name"), [("retention.ms", SET, "1")], 17, "contains one or more characters other than"),
        ((TOPIC, ""), [("retention.ms", SET, "1")], 42, "Default topic resources are not allowed."),
        ((BROKER, "7"), [("log.retention.ms", SET, "1")], 42, "expected 1, but received 7; ask that broker"),
        ((BROKER, "1"), [("log.dirs", SET, "/x")], 42, "log.dirs is read-only: it cannot be updated dynamically"),
        ((BROKER, ""), [("log.retention.hours", SET, "1")], 42, "change log.retention.ms instead"),
        ((BROKER, ""), [("log.retenton.ms", SET, "1")], 42, "did you mean 'log.retention.ms'"),
        ((BROKER, ""), [("max.connections", SET, "0")], 42, "max.connections: Value must be at least 1"),
        ((BROKER, "1"), [("log.retention.ms", SET, "-7")], 42, "log.retention.ms: Value must be at least -1"),
        ((BROKER, "1"), [("log.cleaner.max.compaction.lag.ms", SET, "1"),
                         ("log.cleaner.min.compaction.lag.ms", SET, "2")], 42, "conflict topic config setting"),
        ((9, "x"), [("a", SET, "1")], 42, "Unknown resource type 9; settings of topics (2)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("validate_only", [True, False])
def test_refusals(
    broker: BrokerProcess, admin: Admin, of: tuple[int, str], configs: list[tuple[str, int, str | None]],
    code: int, text: str, validate_only: bool,
) -> None:  # fmt: skip
    admin.create_topic("refusing", 1, 1, if_not_exists=True)
    kind, name = of
    request = IncrementalAlterConfigsRequest(resources=[resource(kind, name, configs)], validate_only=validate_only)
    with RawClient(broker.bootstrap) as client:
        for version in (0, 1):
            (answer,) = client.call(request, version).responses
            assert (answer.error_code, answer.resource_type, answer.resource_name) == (code, kind, name)
            assert text in answer.error_message
    if name == "refusing":
        assert [each for each in admin.describe_configs(topic=name).values() if each.source == "topic"] == []
    assert admin.describe_configs(all_brokers=True) == {}


def test_a_broker_that_is_not_there_is_refused_at_once_with_those_that_are(admin: Admin) -> None:
    said = "broker 7 is not among the live brokers of the cluster at present: 1"
    with pytest.raises(BrokerNotAvailable, match=said):
        admin.describe_configs(broker_id=7)
    with pytest.raises(BrokerNotAvailable, match=said):
        admin.incremental_alter_configs(set_to("log.retention.ms", "1"), broker_id=7)


def test_what_is_too_long_is_refused_in_a_text_that_fits(broker: BrokerProcess, admin: Admin) -> None:
    topic, longest = made(admin, "patient"), "x" * 32767
    asked = [(TOPIC, topic, "retention.ms", longest), (TOPIC, topic, longest, "1"), (BROKER, longest, "a", "1")]
    with RawClient(broker.bootstrap) as client:
        for kind, name, setting, value in asked:
            request = IncrementalAlterConfigsRequest(resources=[resource(kind, name, [(setting, SET, value)])])
            (answer,) = client.call(request, 1).responses
            assert answer.error_code in (40, 42) and "characters)" in answer.error_message[-20:]


def test_a_list_does_not_grow_beyond_what_can_be_described(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "growing", cleanup_policy="delete")
    change = resource(TOPIC, topic, [("cleanup.policy", APPEND, "x" * 32_766)])
    with RawClient(broker.bootstrap) as client:
        (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[change]), 1).responses
    assert (answer.error_code, "would have more than 32767 bytes" in answer.error_message) == (InvalidConfig.code, True)


def test_throttles_are_set_and_deleted_twice(broker: BrokerProcess, admin: Admin) -> None:
    """As Kafka's tool does around each reassignment, and without one."""
    topic = made(admin, "unthrottled")
    rates = [
        *(f"{role}.replication.throttled.rate" for role in ROLES),
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ]
    lists = [f"{role}.replication.throttled.replicas" for role in ROLES]
    with RawClient(broker.bootstrap) as client:
        for operation, rate, replicas in ((SET, "100", "0:1,1:1"), (DELETE, None, None), (DELETE, None, None)):
            changes = [resource(TOPIC, topic, [(name, operation, replicas) for name in lists])]
            changes.append(resource(BROKER, "1", [(name, operation, rate) for name in rates]))
            answers = client.call(IncrementalAlterConfigsRequest(resources=changes), 1).responses
            assert [each.error_code for each in answers] == [0, 0]
            found = admin.describe_configs(broker_id=1)
            assert {found[name].value for name in rates} == {rate or str(2**63 - 1)}
            assert {admin.describe_configs(topic=topic)[name].value for name in lists} == {replicas or ""}


def test_a_policy_is_kept_once_and_no_keys_ask_for_all(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "once", cleanup_policy="compact,delete,compact")
    admin.incremental_alter_configs([ConfigChange("cleanup.policy", "append", "delete,delete")], topic=topic)
    asked = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=[])
    with RawClient(broker.bootstrap) as client:
        for version in range(1, 5):
            (result,) = client.call(DescribeConfigsRequest(resources=[asked]), version).results
            found = {entry.name: entry.value for entry in result.configs}
            assert (found["cleanup.policy"], "segment.bytes" in found) == ("compact,delete", True)


def test_each_resource_has_its_own_outcome(broker: BrokerProcess, admin: Admin) -> None:
    first, second = made(admin, "outcome-1"), made(admin, "outcome-2")
    twice = legacy(second, {"flush.ms": "1"})
    request = AlterConfigsRequest(resources=[legacy(first, {"flush.ms": "5"}), legacy("not-there", {}), twice, twice])
    with RawClient(broker.bootstrap) as client:
        for version in (0, 1, 2):
            answers = client.call(request, version).responses
            assert [(each.resource_name, each.error_code) for each in answers] == [
                (first, 0), ("not-there", 3), (second, 42)
            ]  # fmt: skip
    assert admin.describe_configs(topic=first)["flush.ms"].value == "5"
    assert admin.describe_configs(topic=second)["flush.ms"].is_default


def test_settings_of_many_topics_are_changed_together(admin: Admin) -> None:
    first, second = made(admin, "together-1"), made(admin, "together-2", flush_ms="77")
    admin.alter_topic_settings({first: set_to("flush.ms", "5"), second: [ConfigChange("flush.ms", "delete")]})
    found = admin.describe_topic_settings([first, second], ["flush.ms"])
    assert found[first]["flush.ms"].value == "5" and found[second]["flush.ms"].is_default
    with pytest.raises(UnknownTopicOrPartition, match="cannot alter the settings of topic not-there: "):
        admin.alter_topic_settings({"not-there": set_to("flush.ms", "6"), second: set_to("flush.ms", "6")})
    # The others are changed all the same.
    assert admin.describe_configs(topic=second)["flush.ms"].value == "6"
    admin.alter_topic_settings({})


def test_precedence_and_that_a_default_never_undoes_an_override(admin: Admin) -> None:
    topic = made(admin, "precedence", retention_ms="11")
    static = [("48", "static broker"), ("604800000", "default")]
    try:
        admin.incremental_alter_configs(set_to("log.retention.ms", "33"), all_brokers=True)
        admin.incremental_alter_configs(set_to("log.retention.ms", "22"), broker_id=1)
        everything = [("11", "topic"), ("22", "dynamic broker"), ("33", "dynamic default broker"), *static]
        assert sources(admin, "retention.ms", topic=topic) == everything
        assert sources(admin, "log.retention.ms", broker_id=1) == everything[1:]
        assert admin.describe_configs(all_brokers=True).keys() == {"log.retention.ms"}
        assert sources(admin, "log.retention.ms", all_brokers=True) == everything[2:3]
        admin.incremental_alter_configs([ConfigChange("retention.ms", "delete")], topic=topic)
        assert sources(admin, "retention.ms", topic=topic) == everything[1:]
        admin.incremental_alter_configs([ConfigChange("log.retention.ms", "delete")], broker_id=1)
        assert sources(admin, "retention.ms", topic=topic) == everything[2:]
    finally:
        admin.alter_configs({}, broker_id=1)
        admin.alter_configs({}, all_brokers=True)
    assert sources(admin, "retention.ms", topic=topic) == static
    entries = admin.describe_configs(broker_id=1)
    assert (entries["log.dirs"].read_only, entries["log.segment.bytes"].read_only) == (True, False)
    assert all(entry.documentation and entry.kind for entry in entries.values())


def test_changes_hold_at_once(broker: BrokerProcess, admin: Admin) -> None:
    """Each is asked for and then seen in the very next request."""
    topic = made(admin, "at-once")
    here = TopicPartition(topic, 0)
    with RawClient(broker.bootstrap) as client:

        def produced(size: int, **options: int) -> int:
            now = {"timestamp_ms": time.time_ns() // 1_000_000}
            return int(client.produce(topic, make_batch([b"v" * size], **(now | options))).error_code)

        def alter(name: str, value: str) -> None:
            admin.incremental_alter_configs(set_to(name, value), topic=topic)

        def segments() -> int:
            return len(list((broker.data_dir / f"{topic}-0").glob("*.log")))

        assert produced(5000) == 0
        alter("max.message.bytes", "1000")
        assert produced(5000) == MessageTooLarge.code
        alter("max.message.bytes", "100000")
        assert produced(5000) == 0
        before = segments()
        alter("segment.bytes", "6000")
        assert produced(5000) == 0
        assert segments() == before + 1
        alter("cleanup.policy", "compact")
        assert produced(10) == 87
        alter("cleanup.policy", "delete")
        alter("message.timestamp.before.max.ms", "1000")
        assert produced(10, timestamp_ms=1000) == 32
        alter("message.timestamp.type", "LogAppendTime")
        assert produced(10, timestamp_ms=1000) == 0
        newest = admin.list_offsets({here: -3})[here]
        assert newest is not None and newest.timestamp > 1_700_000_000_000
    # Recompression.
    alter_all = [ConfigChange("compression.type", "set", "zstd"), ConfigChange("segment.bytes", "delete")]
    admin.incremental_alter_configs(alter_all, topic=topic)
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=50) as producer:
        for _ in range(100):
            producer.send(topic, b"squeeze me " * 100, partition=0)
    tail = max((broker.data_dir / f"{topic}-0").glob("*.log")).read_bytes()
    assert b"squeeze me squeeze me" not in tail


def test_visibility_and_flush_timers_follow_a_change(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "visible")
    here = TopicPartition(topic, 0)

    def end() -> int:
        found = admin.list_offsets({here: -1})[here]
        assert found is not None
        return found.offset

    with Producer(bootstrap_servers=broker.bootstrap) as producer:

        def send() -> None:
            producer.send(topic, b"x", partition=0)
            producer.flush()

        send()
        assert end() == 1
        never = [ConfigChange("visibility.policy", "set", "flushed"), ConfigChange("flush.ms", "set", "100000000")]
        admin.incremental_alter_configs(never, topic=topic)
        # What consumers may have seen stays visible; what comes waits for a flush, and nothing asks for one.
        assert end() == 1
        send()
        assert end() == 1
        # The timer of flush.ms starts for what is in the log already.
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([here])
            consumer.seek(here, 1)
            admin.incremental_alter_configs(set_to("flush.ms", "50"), topic=topic)
            assert [record.offset for record in consumer.poll(int(PATIENCE_S * 1000))] == [1]
        assert end() == 2
        admin.incremental_alter_configs(set_to("flush.ms", "100000000"), topic=topic)
        send()
        send()
        assert admin.describe_configs(topic=topic)["flush.ms"].value == "100000000"
        admin.incremental_alter_configs(set_to("visibility.policy", "committed"), topic=topic)
        assert end() == 4


def test_a_list_of_all_brokers_grows_from_what_all_have(admin: Admin) -> None:
    policy = "log.cleanup.policy"
    admin.incremental_alter_configs(set_to(policy, "compact"), broker_id=1)
    admin.incremental_alter_configs([ConfigChange(policy, "append", "compact")], all_brokers=True)
    assert sources(admin, policy, broker_id=1)[:2] == [
        ("compact", "dynamic broker"), ("delete,compact", "dynamic default broker"),
    ]  # fmt: skip
    admin.alter_configs({}, broker_id=1)
    admin.alter_configs({}, all_brokers=True)


def test_dynamic_limits_of_the_broker(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "limits")
    admin.incremental_alter_configs(set_to("message.max.bytes", "1000"), all_brokers=True)
    with Producer(bootstrap_servers=broker.bootstrap, retries=0) as producer, pytest.raises(MessageTooLarge):
        producer.send(topic, b"x" * 5000, partition=0).result(PATIENCE_S)
    admin.incremental_alter_configs([ConfigChange("message.max.bytes", "delete")], all_brokers=True)
    with RawClient(broker.bootstrap) as before:
        admin.incremental_alter_configs(set_to("max.connections", "1"), broker_id=1)
        with pytest.raises((OSError, EOFError)), RawClient(broker.bootstrap) as refused:
            refused.produce(topic, make_batch(1))
        request = IncrementalAlterConfigsRequest(resources=[resource(BROKER, "1", [("max.connections", DELETE, None)])])
        assert before.call(request, 1).responses[0].error_code == 0
    with RawClient(broker.bootstrap) as served:
        served.produce(topic, make_batch(1))


def test_threads_of_the_broker_change_while_it_serves(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "threads", **{"compression.type": "zstd"})
    name = "num.io.threads"
    for count in ("1", "9", "2"):
        admin.incremental_alter_configs(set_to(name, count), broker_id=1)
        assert sources(admin, name, broker_id=1)[0] == (count, "dynamic broker")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            # A thread compresses them again.
            outcomes = [producer.send(topic, bytes(5000), partition=0) for _ in range(50)]
            assert all(each.result(PATIENCE_S).offset >= 0 for each in outcomes)
    admin.incremental_alter_configs([ConfigChange(name, "delete")], broker_id=1)


def test_concurrent_alterations_lose_nothing(broker: BrokerProcess, admin: Admin) -> None:
    """Many clients each change a setting of their own of one topic: all changes are in it."""
    topic = made(admin, "crowded")
    wanted = {
        **dict.fromkeys(
            ("flush.ms", "segment.ms", "retention.ms", "index.interval.bytes", "segment.jitter.ms"), "4000"
        ),
        **dict.fromkeys(("flush.messages", "delete.retention.ms", "file.delete.delay.ms", "retention.bytes"), "5000"),
        **dict.fromkeys(
            ("min.compaction.lag.ms", "max.message.bytes", "segment.bytes", "index.interval.bytes"), "6000"
        ),
    }
    errors: list[KafkaError] = []

    def change(name: str) -> None:
        with Admin(bootstrap_servers=broker.bootstrap) as mine:
            try:
                mine.incremental_alter_configs(set_to(name, wanted[name]), topic=topic)
            except KafkaError as error:
                errors.append(error)

    threads = [threading.Thread(target=change, args=(name,)) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = admin.describe_configs(topic=topic)
    assert {name: entry.value for name, entry in found.items() if entry.source == "topic"} == wanted


def test_settings_outlive_a_kill(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "lasting")
    admin.incremental_alter_configs(set_to("segment.ms", "1234"), topic=topic)
    admin.incremental_alter_configs(set_to("log.flush.interval.ms", "4321"), all_brokers=True)
    broker.kill()
    broker.start()
    assert sources(admin, "segment.ms", topic=topic)[0] == ("1234", "topic")
    assert sources(admin, "flush.ms", topic=topic)[0] == ("4321", "dynamic default broker")
    admin.alter_configs({}, all_brokers=True)


def test_an_acknowledged_change_survives_a_kill_at_any_moment(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "killed")
    acknowledged: list[int] = []
    some = threading.Event()

    def change_until_killed() -> None:
        with RawClient(broker.bootstrap) as client, contextlib.suppress(OSError, EOFError):
            for number in itertools.count(1):
                request = IncrementalAlterConfigsRequest(
                    resources=[resource(TOPIC, topic, [("retention.ms", SET, str(number))])]
                )
                assert client.call(request, 1).responses[0].error_code == 0
                acknowledged.append(number)
                if number == 20:
                    some.set()

    thread = threading.Thread(target=change_until_killed)
    thread.start()
    assert some.wait(PATIENCE_S)
    broker.kill()
    thread.join(PATIENCE_S)
    broker.start()
    kept = int(admin.describe_configs(topic=topic)["retention.ms"].value or "0")
    # The last one may have been written without its answer getting out.
    assert kept - acknowledged[-1] in (0, 1)


def test_what_another_program_wrote_wrongly_is_left_out(broker: BrokerProcess, admin: Admin) -> None:
    broken, mixed = made(admin, "broken", segment_ms="77"), made(admin, "mixed", segment_ms="77")
    admin.incremental_alter_configs(set_to("log.flush.interval.ms", "4321"), all_brokers=True)
    broker.stop()
    nodes = {
        f"/config/topics/{broken}": b"\xff not JSON",
        f"/config/topics/{mixed}": json.dumps(
            {"version": 1, "config": {"segment.ms": "88", "retention.ms": "soon", "no.such": "1"}}
        ).encode(),
        "/config/brokers/<default>": json.dumps(
            {
                "version": 1,
                "config": {"log.dirs": "/x", "log.flush.interval.ms": "5", "no.such": "1", "log.retention.ms": "x"},
            }
        ).encode(),
    }  # fmt: skip
    (database,) = (broker.data_dir / "_registry").glob("*.db")
    with sqlite3.connect(database) as connection:
        for path, data in nodes.items():
            assert connection.execute("UPDATE nodes SET data = ? WHERE path = ?", (data, path)).rowcount == 1
    connection.close()
    broker.start()
    assert admin.describe_configs(topic=broken)["segment.ms"].source == "default"
    found = admin.describe_configs(topic=mixed)
    assert (found["segment.ms"].value, found["retention.ms"].source) == ("88", "static broker")
    assert sources(admin, "flush.ms", topic=broken)[0] == ("5", "dynamic default broker")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for topic in (broken, mixed):
            assert producer.send(topic, b"served", partition=0).result(PATIENCE_S).offset == 0
    # An alteration fixes them. The faults of a topic must go first, as in Kafka.
    admin.incremental_alter_configs(set_to("segment.ms", "99"), topic=broken)
    assert admin.describe_configs(topic=broken)["segment.ms"].value == "99"
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        admin.incremental_alter_configs(set_to("flush.ms", "9"), topic=mixed)
    with pytest.raises(InvalidConfig, match=r"retention\.ms"):
        admin.incremental_alter_configs([ConfigChange("no.such", "delete")], topic=mixed)
    admin.incremental_alter_configs(
        [ConfigChange("retention.ms", "delete"), ConfigChange("no.such", "delete")], topic=mixed
    )
    admin.incremental_alter_configs(set_to("log.segment.bytes", "5000"), all_brokers=True)
    with pytest.raises(InvalidRequest, match="read-only"):
        admin.incremental_alter_configs(set_to("log.dirs", "/y"), all_brokers=True)
    admin.alter_configs({}, all_brokers=True)


def test_confluents_administrator(broker: BrokerProcess, admin: Admin) -> None:
    topic = made(admin, "by-confluent")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def alter(kind: object, name: str, *entries: ConfigEntry) -> None:
        resource = ConfigResource(kind, name, incremental_configs=list(entries))
        (future,) = client.incremental_alter_configs([resource]).values()
        future.result(PATIENCE_S)

    def described(kind: object, name: str) -> dict[str, ConfigEntry]:
        (future,) = client.describe_configs([ConfigResource(kind, name)]).values()
        return future.result(PATIENCE_S)  # type: ignore[no-any-return]

    operation = AlterConfigOpType
    alter(
        ConfigResource.Type.TOPIC, topic,
        ConfigEntry("retention.ms", "123", incremental_operation=operation.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=operation.APPEND),
    )  # fmt: skip
    found = described(ConfigResource.Type.TOPIC, topic)
    assert found["retention.ms"].value == "123"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert [(each.name, each.value) for each in found["retention.ms"].synonyms.values()] == [
        ("retention.ms", "123"), ("log.retention.hours", "48"), ("log.retention.ms", "604800000"),
    ]  # fmt: skip
    assert found["cleanup.policy"].value == "delete,compact"
    alter(
        ConfigResource.Type.BROKER, "1",
        ConfigEntry("log.flush.interval.messages", "50", incremental_operation=operation.SET),
    )  # fmt: skip
    own = described(ConfigResource.Type.BROKER, "1")
    assert own["log.flush.interval.messages"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
    assert (own["log.flush.interval.messages"].is_read_only, own["log.dirs"].is_read_only) == (False, True)
    alter(
        ConfigResource.Type.BROKER, "1",
        ConfigEntry("log.flush.interval.messages", None, incremental_operation=operation.DELETE),
    )  # fmt: skip
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        alter(ConfigResource.Type.BROKER, "1", ConfigEntry("log.dirs", "/x", incremental_operation=operation.SET))
    assert refused.value.args[0].code() == 42
