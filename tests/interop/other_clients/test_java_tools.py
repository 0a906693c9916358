"""Apache Kafka's own command-line tools, unmodified, against the broker; those for groups are in groups/."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.java_tools import JavaTools
from tests.lab import apache_kafka
from tests.patience import PATIENCE_S
from tests.pool.forking import run_command

pytestmark = [pytest.mark.kafka]

TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


class Tool(Protocol):
    """A tool by the name of its class, asking the broker."""

    def __call__(
        self, name: str, *arguments: str, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def tool(broker: BrokerProcess, java_tools: JavaTools) -> Tool:
    def run(name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        name = name if name.startswith("kafka.") else TOOLS + name
        return java_tools.run(name, "--bootstrap-server", broker.bootstrap, *arguments, **options)

    return run


def test_topics_from_creation_to_deletion(broker: BrokerProcess, tool: Tool) -> None:
    made = "made-by-tool"
    tool("TopicCommand", "--create", "--topic", made, "--partitions", "2", "--config", "retention.ms=60000000")
    assert made in tool("TopicCommand", "--list").stdout.split()
    tool("TopicCommand", "--alter", "--topic", made, "--partitions", "3")
    described = tool("TopicCommand", "--describe", "--topic", made).stdout
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: retention.ms=60000000", described)
    assert re.findall(r"Partition: (\d)\s+Leader: (\d)\s+Replicas: (\d)\s+Isr: (\d)", described) == [
        (str(number), "1", "1", "1") for number in range(3)
    ]
    again = tool("TopicCommand", "--create", "--topic", made, check=False)
    assert again.returncode != 0
    assert f"Topic '{made}' already exists." in again.stdout
    assert "TopicExistsException" in again.stdout + again.stderr
    fewer = tool("TopicCommand", "--alter", "--topic", made, "--partitions", "1", check=False)
    assert f"The topic {made} currently has 3 partition(s); 1 would not be an increase." in fewer.stdout
    assert "InvalidPartitionsException" in fewer.stdout + fewer.stderr
    # As many requests as there are partitions: each goes on from the cursor of the one before.
    paged = tool("TopicCommand", "--describe", "--topic", made, "--partition-size-limit-per-response", "1")
    assert paged.stdout == described
    tool("TopicCommand", "--delete", "--topic", made)
    assert made not in tool("TopicCommand", "--list").stdout.split()


def test_console_producer_and_consumer(broker: BrokerProcess, tool: Tool) -> None:
    lines = [f"k{number % 3}:line {number} with ünïcode" for number in range(100)]
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("console", 1, 1)
    tool(
        "ConsoleProducer", "--topic", "console", "--compression-codec", "zstd",
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:", input="\n".join(lines) + "\n",
    )  # fmt: skip
    read = ("--topic", "console", "--partition", "0", "--timeout-ms", f"{PATIENCE_S * 1000:.0f}")
    show = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
    whole = tool("consumer.ConsoleConsumer", *read, *show, "--offset", "earliest", "--max-messages", str(len(lines)))
    assert whole.stdout.splitlines() == lines
    from_offset = tool("consumer.ConsoleConsumer", *read, *show, "--offset", "97", "--max-messages", "3")
    assert from_offset.stdout.splitlines() == lines[97:]


def test_offsets_configs_and_versions(broker: BrokerProcess, tool: Tool) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("looked-at", 2, 1, configs={"retention.ms": "60000000"})
    base_ms = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(5):
            producer.send("looked-at", b"%d" % number, partition=1, timestamp_ms=base_ms - 5000 + 1000 * number)
    for at, wanted in (("-1", "5"), (str(base_ms - 3500), "2"), ("-3", "4")):
        found = tool("GetOffsetShell", "--topic", "looked-at", "--time", at).stdout.split()
        assert f"looked-at:1:{wanted}" in found, f"--time {at}"
    of_topic = ("--describe", "--entity-type", "topics", "--entity-name", "looked-at")
    own = tool("kafka.admin.ConfigCommand", *of_topic).stdout
    assert "retention.ms=60000000" in own and "segment.bytes" not in own
    everything = tool("kafka.admin.ConfigCommand", *of_topic, "--all").stdout
    assert (
        "segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in everything
    )
    versions = tool("BrokerApiVersionsCommand").stdout
    assert re.search(r"Produce\(0\): 0 to 10", versions) and re.search(r"Fetch\(1\): 4 to 17", versions)
    assert re.search(r"OffsetCommit\(8\): \d to \d", versions) and "TxnOffsetCommit(28): UNSUPPORTED" in versions


def test_settings_altered_by_kafkas_tool(broker: BrokerProcess, tool: Tool) -> None:
    configs = "kafka.admin.ConfigCommand"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("tuned", 1, 1)
        of_topic = ("--entity-type", "topics", "--entity-name", "tuned")
        changes = "retention.ms=123456,cleanup.policy=[compact,delete]"
        altered = tool(configs, "--alter", *of_topic, "--add-config", changes).stdout
        assert "Completed updating config for topic tuned." in altered
        found = admin.describe_configs(topic="tuned")
        assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("123456", "compact,delete")
        tool(configs, "--alter", *of_topic, "--delete-config", "cleanup.policy")
        assert admin.describe_configs(topic="tuned")["cleanup.policy"].is_default
        shown = tool(configs, "--describe", *of_topic).stdout
        assert (
            "  retention.ms=123456 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=123456, "
            "DEFAULT_CONFIG:log.retention.ms=604800000}"
        ) in shown
        # Ours says the same.
        ours = run_command("configs", "--describe", *of_topic, "--bootstrap-server", broker.bootstrap)
        assert ours.stdout == shown
        by_default = ("--entity-type", "brokers", "--entity-default")
        tool(configs, "--alter", *by_default, "--add-config", "log.flush.interval.ms=5000")
        assert "log.flush.interval.ms=5000" in tool(configs, "--describe", *by_default).stdout
        everything = tool(configs, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
        assert (
            "  log.flush.interval.ms=5000 sensitive=false "
            "synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.flush.interval.ms=5000, "
        ) in everything.stdout
        refused = tool(
            configs, "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.dirs=/x",
            check=False,
        )  # fmt: skip
        assert refused.returncode != 0
        assert "log.dirs is read-only: it cannot be updated dynamically" in refused.stdout + refused.stderr
        admin.alter_configs({}, all_brokers=True)


def test_resources_listed_by_kafkas_tool(broker: BrokerProcess, tool: Tool) -> None:
    configs = "kafka.admin.ConfigCommand"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("listed", 1, 1, {"flush.ms": "77"})
    topics = tool(configs, "--describe", "--entity-type", "topics").stdout
    assert "Dynamic configs for topic listed are:\n  flush.ms=77 " in topics
    brokers = tool(configs, "--describe", "--entity-type", "brokers").stdout.splitlines()
    assert brokers == ["Dynamic configs for broker 1 are:", "Default configs for brokers in the cluster are:"]
    none = tool(configs, "--describe", "--entity-type", "topics", "--entity-name", "not-there").stdout
    assert none == "The topic 'not-there' doesn't exist and doesn't have dynamic config.\n"
    for kind in ("client-metrics", "groups"):
        assert tool(configs, "--describe", "--entity-type", kind).stdout.strip() == ""
    assert tool("ClientMetricsCommand", "--list").stdout.strip() == ""


def test_levels_of_loggers_altered_by_kafkas_tool(broker: BrokerProcess, tool: Tool) -> None:
    configs, of_broker = "kafka.admin.ConfigCommand", ("--entity-type", "broker-loggers", "--entity-name", "1")
    name = "spark_kafkalite.broker.upkeep.cleaner"
    assert f"  {name}=INFO sensitive=false synonyms={{}}\n" in tool(configs, "--describe", *of_broker).stdout
    altered = tool(configs, "--alter", *of_broker, "--add-config", f"{name}=ERROR").stdout
    assert "Completed updating config for broker-logger 1." in altered
    shown = tool(configs, "--describe", *of_broker).stdout
    assert f"  {name}=ERROR " in shown and "  root=INFO " in shown
    refused = tool(configs, "--alter", *of_broker, "--add-config", f"{name}=LOUD", check=False)
    assert f"Cannot set the log level of {name} to LOUD as it is not a supported log level." in (
        refused.stdout + refused.stderr
    )
    tool(configs, "--alter", *of_broker, "--delete-config", name)
    assert f"  {name}=INFO " in tool(configs, "--describe", *of_broker).stdout


def test_producer_performance(broker: BrokerProcess, tool: Tool, java_tools: JavaTools) -> None:
    done = tool(
        "ProducerPerformance", "--topic", "load", "--num-records", "50000", "--record-size", "200",
        "--throughput", "-1",
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("50000 records sent")
    assert "load:0:50000" in tool("GetOffsetShell", "--topic", "load").stdout.split()
    # The segment files are Kafka's: its own tool reads them, checks them, and finds all records.
    broker.stop()
    segments = sorted((broker.data_dir / "load-0").glob("*.log"))
    dumped = java_tools.run(TOOLS + "DumpLogSegments", "--files", ",".join(str(each) for each in segments))
    counts = [int(count) for count in re.findall(r"^baseOffset.* count: (\d+) .* isvalid: true$", dumped.stdout, re.M)]
    assert sum(counts) == 50_000
    assert "isvalid: false" not in dumped.stdout
    indexes = sorted((broker.data_dir / "load-0").glob("*index"))
    checked = java_tools.run(
        TOOLS + "DumpLogSegments", "--index-sanity-check", "--files", ",".join(str(each) for each in indexes)
    )
    assert len(indexes) == 2 and checked.stdout.count("passed sanity check") == 2
    broker.start()


def test_deleting_records_and_looking_at_log_directories(broker: BrokerProcess, tool: Tool, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("to-delete", 2, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(20):
            producer.send("to-delete", b"%d" % number, partition=number % 2)
    file = tmp_path / "offsets.json"
    partitions = [
        {"topic": "to-delete", "partition": 0, "offset": 4},
        {"topic": "to-delete", "partition": 1, "offset": -1},
    ]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    deleted = tool("DeleteRecordsCommand", "--offset-json-file", str(file)).stdout
    low_watermarks = re.findall(r"partition: (\S+)\s+low_watermark: (\d+)", deleted)
    assert sorted(low_watermarks) == [("to-delete-0", "4"), ("to-delete-1", "10")]
    for when, expected in (("-2", ["4", "10"]), ("-4", ["4", "10"]), ("latest", ["10", "10"]), ("-5", [])):
        shown = tool("GetOffsetShell", "--topic", "to-delete", "--time", when).stdout
        assert re.findall(r"^to-delete:\d:(\d+)$", shown, re.MULTILINE) == expected
    described = tool("LogDirsCommand", "--describe", "--topic-list", "to-delete").stdout
    (brokers,) = [json.loads(line) for line in described.splitlines() if line.startswith("{")]
    (directory,) = brokers["brokers"][0]["logDirs"]
    assert (directory["logDir"], directory["error"]) == (str(broker.data_dir), None)
    found = {each["partition"]: (each["size"], each["offsetLag"], each["isFuture"]) for each in directory["partitions"]}
    assert set(found) == {"to-delete-0", "to-delete-1"}
    assert all(size > 100 and not lag and not future for size, lag, future in found.values())


def test_tools_of_what_is_not_built_hear_that_it_is_off(broker: BrokerProcess, tool: Tool, tmp_path: Path) -> None:
    topic = "unmoved"
    tool("TopicCommand", "--create", "--topic", topic)
    moves = {}
    for name, replicas in (("same", [1]), ("other", [2])):
        moves[name] = str(tmp_path / name)
        partition = {"topic": topic, "partition": 0, "replicas": replicas}
        Path(moves[name]).write_text(json.dumps({"version": 1, "partitions": [partition]}))
    reassign = "reassign.ReassignPartitionsCommand"
    assert "No partition reassignments found." in tool(reassign, "--list").stdout
    # These also delete the throttles that it could have set.
    for action, said in (
        ("--verify", "is completed"),
        ("--cancel", "None of the specified partition moves are active"),
    ):
        assert said in tool(reassign, action, "--reassignment-json-file", moves["same"]).stdout
    refused = tool("AclCommand", "--list", check=False)
    assert "SecurityDisabledException: No Authorizer is configured on the broker" in refused.stdout + refused.stderr


def test_quotas_are_set_shown_and_removed(tool: Tool) -> None:
    configs = "kafka.admin.ConfigCommand"
    client = ("--entity-type", "clients", "--entity-name", "a/b%c")
    both = ("--entity-type", "users", "--entity-name", "alice", *client)
    rates = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5"
    done = tool(configs, "--alter", *both, "--add-config", rates)
    assert "Completed updating config" in done.stdout
    tool(configs, "--alter", "--entity-type", "users", "--entity-default", "--add-config", "producer_byte_rate=7")
    tool(configs, "--alter", "--entity-type", "ips", "--entity-name", "10.0.0.1", "--add-config",
         "connection_creation_rate=5")  # fmt: skip
    shown = tool(configs, "--describe", *both).stdout
    assert "Quota configs for user-principal 'alice', client-id 'a/b%c' are" in shown
    for each in ("producer_byte_rate=1024.0", "consumer_byte_rate=2048.0", "request_percentage=12.5"):
        assert each in shown
    shown = tool(configs, "--describe", "--entity-type", "users").stdout
    assert "Quota configs for the default user-principal are producer_byte_rate=7.0" in shown
    shown = tool(configs, "--describe", "--entity-type", "ips").stdout
    assert "connection_creation_rate=5.0" in shown
    assert tool(configs, "--describe", *client).stdout.strip() == ""
    for key, said in (("producer_byte_rate=0", "must be greater than 0"), ("controller_mutation_rate=5", "no quota")):
        refused = tool(configs, "--alter", *client, "--add-config", key, check=False)
        assert refused.returncode != 0
        assert said in refused.stdout + refused.stderr
    tool(configs, "--alter", *both, "--delete-config", "producer_byte_rate,consumer_byte_rate,request_percentage")
    tool(configs, "--alter", "--entity-type", "users", "--entity-default", "--delete-config", "producer_byte_rate")
    tool(configs, "--alter", "--entity-type", "ips", "--entity-name", "10.0.0.1", "--delete-config",
         "connection_creation_rate")  # fmt: skip
    for kind in ("users", "clients", "ips"):
        assert tool(configs, "--describe", "--entity-type", kind).stdout.strip() == ""
