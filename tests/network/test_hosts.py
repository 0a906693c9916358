"""Broker, client and Spark driver on hosts of their own: what is advertised is what they connect to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.network.hosts import Network, problem
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.root]

# Nobody has it, and no route leads there.
UNREACHABLE = "10.78.0.1:9092"

CLIENT = """
import sys
from spark_kafkalite import Admin, Consumer, Producer
bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Producer(bootstrap_servers=bootstrap) as producer:
    for number in range(count):
        producer.send(topic, b"value %d" % number, b"key %d" % (number % 5))
    producer.flush(20)
seen = []
with Consumer(bootstrap_servers=bootstrap) as consumer:
    consumer.assign(consumer.partitions_for(topic))
    consumer.seek_to_beginning()
    while len(seen) < count:
        seen += [record.value for record in consumer.poll(1000)]
assert sorted(seen) == sorted(b"value %d" % number for number in range(count))
with Admin(bootstrap_servers=bootstrap) as admin:
    print(" ".join(f"{node.host}:{node.port}" for node in admin.describe_cluster().brokers))
"""

LOST_CLIENT = """
import sys
from spark_kafkalite import Consumer, Producer
from spark_kafkalite.errors import KafkaliteError
patience = {"max_block_ms": 10000, "delivery_timeout_ms": 3000, "request_timeout_ms": 1000, "linger_ms": 0}
for make, settings, use in (
    (Producer, patience, lambda producer: producer.send("t", b"x").result(20)),
    (Consumer, {"request_timeout_ms": 2000, "default_api_timeout_ms": 3000},
     lambda consumer: consumer.end_offsets(consumer.partitions_for("t"))),
):
    with make(bootstrap_servers=sys.argv[1], **settings) as client:
        try:
            print("no error:", use(client))
        except KafkaliteError as error:
            print(type(error).__name__, str(error).replace("\\n", " "))
"""

# Through the one connection that works: creating it by Admin would need the advertised one.
MAKE_TOPIC = """
import sys
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.support.raw_client import RawClient
with RawClient(sys.argv[1]) as client:
    client.call(MetadataRequest(topics=[MetadataRequestTopic(name=sys.argv[2])]), 12)
"""

SPARK = """
import sys
from pyspark.sql import SparkSession
good, lost, topic = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
def reader(bootstrap):
    return spark.read.format("kafkalite").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
rows = reader(good).load().selectExpr("CAST(value AS STRING) AS value", "partition", "offset").collect()
print("rows", len(rows), len({row.value for row in rows}))
frame = spark.createDataFrame([(b"from spark",)], "value BINARY")
writer = frame.write.format("kafkalite").mode("append").option("kafka.bootstrap.servers", good)
writer.option("topic", "from-spark").save()
print("written", reader(good).option("subscribe", "from-spark").load().count())
try:
    impatient = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
    print("no error:", reader(lost).options(**impatient).load().count())
except Exception as error:
    print("error", next(line for line in reversed(str(error).splitlines()) if "[KAFKALITE_" in line))
spark.stop()
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if (reason := problem()) is not None:
        pytest.skip(reason)
    with Network(["broker", "client", "spark"]) as running:
        yield running


def broker_on(network: Network, data_dir: Path, advertised: str | None) -> BrokerProcess:
    overrides = {"listeners": "PLAINTEXT://0.0.0.0:9092"}
    if advertised is not None:
        overrides["advertised.listeners"] = f"PLAINTEXT://{advertised}"
    return BrokerProcess(data_dir, overrides=overrides, command_prefix=network.prefix("broker"))


@pytest.fixture(scope="module")
def broker(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that listens on every interface and advertises its host's address; the address."""
    address = f"{network.addresses['broker']}:9092"
    with broker_on(network, tmp_path_factory.mktemp("broker") / "data", address):
        yield address


@pytest.fixture(scope="module")
def lost_broker(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that advertises an address that nobody reaches; the address where it can be reached."""
    data = tmp_path_factory.mktemp("lost-broker") / "data"
    overrides = {
        "listeners": "PLAINTEXT://0.0.0.0:9093",
        "advertised.listeners": f"PLAINTEXT://{UNREACHABLE}",
    }
    with BrokerProcess(data, overrides=overrides, command_prefix=network.prefix("broker")):
        yield f"{network.addresses['broker']}:9093"


def test_a_client_on_another_host(network: Network, broker: str) -> None:
    assert network.python("client", CLIENT, broker, "from-client", "1000").split() == [broker]


def test_other_hosts_do_not_reach_it_through_loopback(network: Network, broker: str) -> None:
    """Or the hosts are not apart, and these tests prove nothing."""
    port = broker.rpartition(":")[2]
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    done = subprocess.run([*network.prefix("client"), "python3", "-c", connect], capture_output=True, check=False)
    assert b"ConnectionRefusedError" in done.stderr


def test_clients_name_the_advertised_address_that_they_cannot_reach(network: Network, lost_broker: str) -> None:
    lines = network.python("client", LOST_CLIENT, lost_broker).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert UNREACHABLE in line and "advertised.listeners" in line and lost_broker in line, lines


@pytest.mark.spark
def test_a_spark_driver_on_a_third_host(network: Network, broker: str, lost_broker: str) -> None:
    # Only here: it imports PySpark.
    from tests.spark.class_archive import java_environment

    network.python("client", CLIENT, broker, "for-spark", "500")
    network.python("client", MAKE_TOPIC, lost_broker, "for-spark")
    printed = network.python(
        *("spark", SPARK, broker, lost_broker, "for-spark"), variables=java_environment(), timeout_s=8 * PATIENCE_S
    ).splitlines()
    assert printed[0] == "rows 500 500"
    assert printed[1] == "written 1"
    assert printed[2].startswith("error ") and "[KAFKALITE_CONNECTION_FAILED]" in printed[2], printed[2]
    assert UNREACHABLE in printed[2] and "advertised.listeners" in printed[2], printed[2]


def test_every_interface_without_an_advertised_host_is_an_error(network: Network, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"advertised\.listeners"):
        broker_on(network, tmp_path / "data", None).start()
