"""The same commands against Apache Kafka, and dump-log on the files that it wrote."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spark_kafkalite.testing.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def kafkalite(*arguments: str, given: bytes = b"") -> str:
    command = [sys.executable, "-m", "spark_kafkalite.cli", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


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
    kafkalite("configs", "alter", "--topic", topic, "--delete-config", "flush.ms,retention.ms", *at)
    shown = kafkalite("configs", "--describe", "--entity-type", "topics", "--entity-name", topic, *at)
    assert "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=" in shown
    assert "flush.ms" not in shown and "retention.ms" not in shown
    kafkalite("topics", "delete", "--topic", topic, *at)


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
