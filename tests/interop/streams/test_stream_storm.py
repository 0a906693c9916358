"""Registry consumers in a storm, over a real ZooKeeper that is killed and restarted.

The soak has 20 consumers and ten times as many troubles. mirrored_nodes keeps the broker's nodes in ZooKeeper.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from tests.interop.streams.storm import Plan, Storm
from tests.seeds import SEED, SOAK

pytestmark = [pytest.mark.zookeeper]


def test_no_record_is_lost_and_no_partition_has_two_readers(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    plan = Plan(20, 24, 60, 3, SEED, 6_000) if SOAK else Plan(6, 8, 6, 1, SEED, 700)
    print(plan)
    # Not the shared one: this one is killed. That it is asked for says whether there can be one.
    with ZooKeeperServer(tmp_path / "zookeeper") as server, BrokerProcess(tmp_path / "broker") as broker:
        outcome = Storm(broker.bootstrap, server, tmp_path, plan).run()
    print(outcome)
    assert not outcome.problems, f"KAFKALITE_SEED={SEED}"
    assert outcome.zookeeper_kills == plan.zookeeper_kills
    assert outcome.troubles >= plan.troubles
    assert outcome.sent >= plan.records
