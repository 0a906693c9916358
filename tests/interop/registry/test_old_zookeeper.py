"""A broker does not start with a real ZooKeeper of the last line that cannot watch trees, and names its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from spark_kafkalite.processes.zookeeper import available, class_path, four_letters
from tests.conftest import fetch_or_skip
from tests.lab import jars
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]


def test_a_broker_names_the_version_of_a_zookeeper_that_is_too_old(tmp_path: Path) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.ZOOKEEPER_3_5)
    of_others = [path for path in class_path().split(":") if not Path(path).name.startswith("zookeeper-")]
    (port,) = free_ports(1)
    server = ChildProcess(
        java_arguments(
            ":".join([jars.class_path(jars.fetch(jars.ZOOKEEPER_3_5)), *of_others]),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(port),
            str(tmp_path / "data"),
            jvm_options=("-Xmx64m", "-Dzookeeper.admin.enableServer=false", *SHORT_LIVED_OPTIONS),
        ),
        tmp_path,
        "zookeeper",
    )
    try:
        server.wait_until(lambda: "Mode:" in four_letters(port, "srvr"), PATIENCE_S, "serving")
        broker = BrokerProcess(tmp_path / "broker", overrides={"zookeeper.connect": f"127.0.0.1:{port}/chroot"})
        with pytest.raises(ChildFailed) as refused:
            broker.start()
    finally:
        server.kill()
    assert f"the ZooKeeper at 127.0.0.1:{port} (3.5.10) is older than 3.6" in str(refused.value)
    assert "upgrade every server of the ensemble to 3.6 or later" in str(refused.value)
