"""A broker with a thousand partitions is stopped, killed and started again: what it opens and syncs for that."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.produce.producer import Producer
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess

PARTITIONS = 1000


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts what is opened with strace")
def test_a_thousand_partitions_come_back_without_much_work(tmp_path: Path) -> None:
    data = tmp_path / "data"
    trace = tmp_path / "trace"
    with BrokerProcess(data) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", PARTITIONS)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for partition in range(PARTITIONS):
                producer.send("t", b"value of %d" % partition, partition=partition)
        assert broker.stop() == 0
    # With -D the broker is the child, and strace looks on from aside.
    strace = ("strace", "-D", "-f", "-qq", "-e", "trace=openat,fsync,fdatasync,rename", "-o", str(trace))
    with BrokerProcess(data, command_prefix=strace) as broker:
        assert broker.stop() == 0
    calls = Counter(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    opened = re.findall(r"openat\([^,]*, \"([^\"]*/t-\d+/[^\"]*)\"", trace.read_text())
    assert len([path for path in opened if path.endswith(".log")]) == PARTITIONS
    assert not [path for path in opened if path.endswith("index")]
    assert calls["fsync"] + calls["fdatasync"] + calls["rename"] < 100, calls
    with BrokerProcess(data) as broker:
        check_ends(broker)
        broker.kill()
        broker.start()
        assert f"{PARTITIONS} of {PARTITIONS} logs" in broker.stderr_path.read_text()
        check_ends(broker)


def check_ends(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        ends = admin.list_offsets({TopicPartition("t", number): -1 for number in range(PARTITIONS)})
    assert {found.offset for found in ends.values()} == {1}
