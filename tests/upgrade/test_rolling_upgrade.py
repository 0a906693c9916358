"""Three brokers of the last release become this code one by one, and the last release again, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.errors import UnsupportedVersion
from tests.interop.cluster.test_commands import kafkalite
from tests.upgrade.last_release import LastRelease
from tests.upgrade.load import Load
from tests.upgrade.upgraded_cluster import change, roll, runs, three_brokers

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def moves(admin: Admin, partition: TopicPartition) -> bool:
    """Whether the controller has a partition moved: that of the last release never does, and this version's only
    without brokers of the last release."""
    (outcome,) = admin.alter_partition_reassignments({partition: [3, 1]}).values()
    assert outcome is None or isinstance(outcome, UnsupportedVersion)
    return outcome is None


def test_brokers_change_to_this_version_and_back_under_load(tmp_path: Path, last_release: LastRelease) -> None:
    with three_brokers(tmp_path, last_release) as cluster:
        load = Load(cluster.bootstrap, tmp_path)
        made: list[str] = []

        def goes_on() -> None:
            """The load does, and each broker has topics made, changed and deleted, wherever the controller is."""
            load.goes_on()
            for number, broker in cluster.brokers.items():
                with Admin(bootstrap_servers=broker.bootstrap) as admin:
                    made.append(f"made-{len(made)}-by-{number}")
                    admin.create_topic(made[-1], 2, 3, configs={"retention.ms": "3600000"})
                    admin.create_partitions({made[-1]: 3})
                    if number == 3:
                        admin.delete_topics([made[-2]])
                        all_are_new = not any(runs(each, last_release) for each in cluster.brokers.values())
                        assert moves(admin, TopicPartition(made[-1], 0)) == all_are_new

        at = ("--bootstrap-server", cluster.bootstrap)
        status = ("cluster", "status", *at)
        try:
            roll(cluster, last_release, after_each=goes_on)
            change(cluster.registry, last_release)
            goes_on()
            assert "under-replicated: 0, " in last_release.command(*status)
            read = ("consume", "--topic", "ours", "--from-beginning", "--max-messages", "30", *at)
            assert "Processed a total of 30 messages" in last_release.command(*read)
            roll(cluster, last_release, back=True, after_each=goes_on)
            change(cluster.registry, last_release, back=True)
            goes_on()
            assert "under-replicated: 0, " in kafkalite(*status).stdout
            load.check()
        finally:
            load.close()
