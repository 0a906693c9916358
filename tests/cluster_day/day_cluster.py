"""The cluster of the day: three of our brokers over a ZooKeeper ensemble of three."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import four_letters
from tests.chaos.final_logs import complaints_of, leftovers_of
from tests.cluster_day.part import PARTITIONS, TOPIC
from tests.cluster_day.passing_topics import PREFIX
from tests.lab.zookeeper_ensemble import ZooKeeperEnsemble

OFFSETS: Final = "__consumer_offsets"
# Kept running all day, so that what it holds may show a trend.
LASTING_BROKER: Final = 3
_SESSION_MS: Final = 6_000
# A broker that was away while a topic was deleted sets its logs aside; they have to go before the day ends.
_STRAY_RETENTION_MS: Final = 10_000
_IN_SYNC_WITHIN_S: Final = 120.0
_BLOCK_BYTES: Final = 1 << 20


class EnsembleRegistry:
    """An ensemble in the place of the one registry that a KafkaliteCluster has otherwise."""

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self.ensemble = ensemble
        self.connect = f"{ensemble.connect}/day"

    @property
    def running(self) -> bool:
        return any(server.running for server in self.ensemble.servers)

    def start(self) -> None:
        self.ensemble.start()

    def resume(self) -> None:
        pass  # no server is ever paused

    def stop(self) -> None:
        self.ensemble.kill()

    kill = stop

    def connections(self) -> int:
        """Return how many connections all servers have together."""
        told = (four_letters(server.port, "mntr") for server in self.ensemble.servers)
        return sum(int(count) for text in told for count in re.findall(r"zk_num_alive_connections\s+(\d+)", text))


class DayCluster(KafkaliteCluster):
    """A context manager; it starts the ensemble first. ``ensemble`` has the registry's servers."""

    def __init__(self, directory: Path) -> None:
        self.ensemble = ZooKeeperEnsemble(directory / "ensemble")
        self.registry_servers = EnsembleRegistry(self.ensemble)
        super().__init__(
            directory / "cluster",
            overrides={"zookeeper.session.timeout.ms": _SESSION_MS, "stray.log.retention.ms": _STRAY_RETENTION_MS},
            registry=self.registry_servers,  # type: ignore[arg-type]
        )

    def wait_until_whole(self) -> None:
        """Wait until what lasts all day has all its replicas in sync. Raises ChildFailed."""
        self.wait_in_sync(TOPIC, OFFSETS, timeout_s=_IN_SYNC_WITHIN_S)

    def orphans(self) -> list[str]:
        """Return the logs that brokers keep of topics that are gone."""
        return [
            f"broker {number} keeps {path.name}"
            for number, broker in self.brokers.items()
            for path in broker.data_dir.glob(f"{PREFIX}*")
            if not path.name.endswith("-delete")
        ]

    # Of stopped brokers ----------------------------------------------------------------------------------------------

    def replicas_that_differ(self) -> list[str]:
        """Compare the bytes of every partition's replicas."""
        found = []
        for partition in range(PARTITIONS):
            digests = {
                number: _digest_of(broker.data_dir / f"{TOPIC}-{partition}") for number, broker in self.brokers.items()
            }
            if len(set(digests.values())) > 1:
                found.append(f"the replicas of {TOPIC}-{partition} differ: {digests}")
        return found

    def complaints(self) -> Iterator[str]:
        """Give what the brokers have left behind, and have said of things that nobody had thought of."""
        for number, broker in self.brokers.items():
            for leftover in leftovers_of(number, broker.data_dir):
                yield f"broker {number} has left {leftover.path}"
            for output in sorted(broker.stderr_path.parent.glob("broker-*.err")):
                for complaint in complaints_of(number, output):
                    yield f"broker {number}, {output.name}: {complaint.text}"


def _digest_of(directory: Path) -> str:
    """Return how many bytes of records a log has, and their digest; its segments may begin elsewhere than others'."""
    digest, size = hashlib.sha256(), 0
    for segment in sorted(directory.glob("*.log")):
        with segment.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    return f"{size} bytes, {digest.hexdigest()[:12]}"
