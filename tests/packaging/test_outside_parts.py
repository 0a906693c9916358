"""The real parts that tests and benches stand on: a broker process, Apache Kafka, HDFS."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import JavaToolFailed
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.hdfs import MiniHdfs
from tests.lab.java import run_java

TOPICS = "org.apache.kafka.tools.TopicCommand"


def test_a_broker_comes_back_on_its_port_after_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        address, pid = broker.bootstrap, broker.pid
        assert broker.resident_bytes() > 1_000_000
        broker.kill()
        assert not broker.running
        broker.start()
        assert (broker.bootstrap, broker.pid == pid) == (address, False)
        assert broker.stop() == 0


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"exit code \d(.|\n)*no\.such\.setting"):
        BrokerProcess(tmp_path / "data", overrides={"no.such.setting": 1}).start()


def test_a_broker_is_gone_after_its_block_whatever_happened_in_it(tmp_path: Path) -> None:
    for trouble in ("kill", "pause", "stop"):
        with BrokerProcess(tmp_path / trouble) as broker:
            getattr(broker, trouble)()
        assert not broker.running


def test_a_broker_is_asked_for_its_address_only_after_it_has_one(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="not been started"):
        _ = BrokerProcess(tmp_path / "data").bootstrap


@pytest.mark.kafka
def test_apache_kafka_takes_and_gives_records_through_its_own_tools(apache_kafka: ApacheKafka) -> None:
    apache_kafka.tool(TOPICS, "--create", "--topic", "outside-parts", "--partitions", "2")
    apache_kafka.tool("org.apache.kafka.tools.ConsoleProducer", "--topic", "outside-parts", input="one\ntwo\n")
    consumed = apache_kafka.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "outside-parts", "--from-beginning", "--max-messages", "2"),
    )
    assert sorted(consumed.stdout.split()) == ["one", "two"]
    assert list(apache_kafka.log_directory.glob("outside-parts-*/*.log"))


@pytest.mark.kafka
def test_a_failing_tool_raises_with_what_it_said(apache_kafka: ApacheKafka) -> None:
    with pytest.raises(JavaToolFailed, match=r"exit code 1(.|\n)*no-such-topic"):
        apache_kafka.tool(TOPICS, "--describe", "--topic", "no-such-topic")
    assert apache_kafka.tool(TOPICS, "--describe", "--topic", "no-such-topic", check=False).returncode == 1


@pytest.mark.soak
@pytest.mark.kafka
def test_apache_kafka_keeps_its_log_over_a_restart(tmp_path: Path) -> None:
    node = ApacheKafka(tmp_path / "kafka")
    with node:
        node.tool(TOPICS, "--create", "--topic", "kept")
    with node:
        assert "kept" in node.tool(TOPICS, "--list").stdout.split()


@pytest.mark.hdfs
def test_hdfs_keeps_a_file_that_sparks_hadoop_client_wrote(hdfs: MiniHdfs, tmp_path: Path) -> None:
    origin = importlib.util.find_spec("pyspark")
    assert origin is not None
    assert origin.origin is not None
    (tmp_path / "core-site.xml").write_text("<configuration/>")  # the shell does not start without one
    class_path = f"{tmp_path}{os.pathsep}{jars.class_path(Path(origin.origin).parent / 'jars')}"
    local = tmp_path / "file.txt"
    local.write_text("three words here\n")

    def shell(*arguments: str) -> str:
        return run_java(class_path, "org.apache.hadoop.fs.FsShell", *arguments).stdout

    remote = f"{hdfs.uri}/outside-parts.txt"
    shell("-put", str(local), remote)
    assert shell("-cat", remote) == "three words here\n"
