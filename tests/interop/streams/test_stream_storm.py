"""Registry consumers in a storm, over a real ZooKeeper that is killed and restarted.

The short form runs here; ``KAFKALITE_SOAK=1`` makes it 20 consumers for 60 s. ``KAFKALITE_STORM_SEED`` repeats a run's
choices. The broker's nodes are kept in ZooKeeper by mirrored_nodes.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from spark_kafkalite.testing.cluster import BrokerProcess
from spark_kafkalite.testing.zookeeper import ZooKeeperServer
from tests.interop.streams.storm import Plan, Storm

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


@pytest.mark.timeout(400)
def test_no_record_is_lost_and_no_partition_has_two_readers(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    seed = int(os.environ.get("KAFKALITE_STORM_SEED") or random.randrange(2**32))
    plan = Plan(20, 24, 60, 3, seed) if SOAK else Plan(6, 8, 7, 1, seed)
    print(plan)
    # Not the shared one: this one is killed. That it is asked for says whether there can be one.
    with ZooKeeperServer(tmp_path / "zookeeper") as server, BrokerProcess(tmp_path / "broker") as broker:
        outcome = Storm(broker.bootstrap, server, tmp_path, plan).run()
    print(outcome)
    assert not outcome.problems
    assert outcome.zookeeper_kills == plan.zookeeper_kills
    assert outcome.kills + outcome.freezes + outcome.leaves > plan.seconds / 4
    assert outcome.sent > plan.records_per_s * plan.seconds / 4
