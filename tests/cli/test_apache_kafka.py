"""The same commands against Apache Kafka, and dump-log on the files that it wrote."""

from __future__ import annotations

import json

import pytest

from tests.lab.apache_kafka import ApacheKafka, kafka_tool
from tests.patience import wait_until
from tests.pool.forking import run_command

pytestmark = [pytest.mark.kafka]


def kafkalite(*arguments: str, given: bytes = b"") -> str:
    done = run_command(*arguments, input=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_work_with_apache_kafka(apache_kafka: ApacheKafka) -> None:
    at = ("--bootstrap-server", apache_kafka.bootstrap)
    topic = "command-line"
    kafkalite("topics", "create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=-1", *at)
    kafkalite("topics", "alter", "--topic", topic, "--partitions", "3", *at)
    described = kafkalite("topics", "--describe", "--topic", topic, *at)
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=-1" in described
    records = [
        {"key": f"k{n}", "value": f"v{n}", "partition": n % 3, "headers": [{"key": "h", "value": "x"}]}
        for n in range(30)
    ]
    given = "".join(json.dumps(record) + "\n" for record in records).encode()
    kafkalite("produce", "--topic", topic, "--json", "--compression", "lz4", *at, given=given)
    shown = kafkalite("consume", "--topic", topic, "--from-beginning", "--until-end", "--json", *at)
    read = [json.loads(line) for line in shown.splitlines()]
    assert sorted((each["key"], each["value"], each["partition"]) for each in read) == sorted(
        (each["key"], each["value"], each["partition"]) for each in records
    )
    assert kafkalite("offsets", "get", "--topic", topic, *at) == "".join(f"{topic}:{n}:10\n" for n in range(3))
    checked = kafkalite("dump-log", "--print-data-log", str(apache_kafka.log_directory / f"{topic}-0"))
    assert "compresscodec: lz4" in checked
    assert "key: k27 payload: v27" in checked
    assert "DAMAGED" not in checked
    kafkalite("configs", "alter", "--topic", topic, "--add-config", "cleanup.policy=[compact,delete],flush.ms=7", *at)

    def settings() -> str:
        return kafkalite("configs", "--describe", "--entity-type", "topics", "--entity-name", topic, *at)

    # Apache Kafka answers before its broker knows of the change.
    wait_until(lambda: "flush.ms=7" in settings(), "the new settings")
    kafkalite("configs", "alter", "--topic", topic, "--delete-config", "flush.ms,retention.ms", *at)
    shown = wait_until(lambda: "flush.ms" not in (now := settings()) and now, "the settings without those deleted")
    assert "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=" in shown
    assert "retention.ms" not in shown
    kafkalite("topics", "delete", "--topic", topic, *at)


def test_a_description_is_what_kafkas_tool_prints(apache_kafka: ApacheKafka) -> None:
    at = ("--bootstrap-server", apache_kafka.bootstrap)
    kafkalite("topics", "create", "--topic", "described-twice", "--partitions", "2", *at)
    arguments = ("--describe", "--topic", "described-twice", *at)
    theirs = kafka_tool("org.apache.kafka.tools.TopicCommand", *arguments).stdout.splitlines()
    ours = kafkalite("topics", *arguments).splitlines()
    # The heading of theirs has settings of the broker, too.
    assert ours[0].split("Configs:")[0] == theirs[0].split("Configs:")[0]
    assert ours[1:] == theirs[1:]
    for some in ("--at-min-isr-partitions", "--under-min-isr-partitions", "--under-replicated-partitions"):
        theirs = kafka_tool("org.apache.kafka.tools.TopicCommand", *arguments, some).stdout.splitlines()
        assert kafkalite("topics", *arguments, some).splitlines() == theirs


def test_the_commands_about_a_cluster_work_with_apache_kafka(apache_kafka: ApacheKafka) -> None:
    at = ("--bootstrap-server", apache_kafka.bootstrap)
    kafkalite("topics", "create", "--topic", "in-a-cluster", *at)
    status = json.loads(kafkalite("cluster", "status", "--json", *at))
    assert [(broker["live"], broker["address"]) for broker in status["brokers"]] == [(True, apache_kafka.bootstrap)]
    assert status["leaderless"] == status["underReplicated"] == []
    assert "the cluster has 1 broker, and 3 are needed" in status["warnings"]
    assert "needs no election" in kafkalite("cluster", "elect", "--preferred", "in-a-cluster:0", *at)


def test_the_commands_about_groups_work_with_apache_kafka(apache_kafka: ApacheKafka) -> None:
    at = ("--bootstrap-server", apache_kafka.bootstrap)
    topic, group = "read-by-command-line", "command-line"
    kafkalite("topics", "create", "--topic", topic, "--partitions", "2", *at)
    kafkalite(
        "produce",
        "--topic",
        topic,
        *at,
        "--key-separator",
        ":",
        given=b"".join(b"%d:line %d\n" % (n, n) for n in range(20)),
    )
    read = kafkalite("consume", "--topic", topic, "--group", group, "--from-beginning", "--until-end", *at)
    assert sorted(read.splitlines()) == sorted(f"line {number}" for number in range(20))
    assert group in kafkalite("groups", "--list", *at).splitlines()
    (described,) = json.loads(kafkalite("groups", "describe", "--group", group, "--json", *at))
    assert (described["state"], [each["lag"] for each in described["offsets"]]) == ("Empty", [0, 0])
    kafkalite("groups", "reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute", *at)
    kafkalite("groups", "copy-offsets", "--group", group, "--to-group", f"{group}-copy", "--execute", *at)
    (copied,) = json.loads(kafkalite("groups", "describe", "--group", f"{group}-copy", "--json", *at))
    assert sum(each["lag"] for each in copied["offsets"]) == 20
    assert all(each["lag_seconds"] >= 0 for each in copied["offsets"] if each["lag"])
    kafkalite("groups", "delete-offsets", "--group", f"{group}-copy", "--topic", topic, *at)
    kafkalite("groups", "delete", "--group", group, "--group", f"{group}-copy", *at)
    assert group not in kafkalite("groups", "list", *at)
