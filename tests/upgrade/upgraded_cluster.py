"""A cluster whose brokers run the last release or this code, and change one by one, as docs/operations.md describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.patience import wait_until
from tests.upgrade.last_release import LastRelease

Server = BrokerProcess | RegistryProcess
# No broker is to lose its session on a busy machine.
_SESSION_MS: Final = 6_000


def three_brokers(directory: Path, release: LastRelease | None) -> KafkaliteCluster:
    """Prepare three brokers and their registry, all of the release; None is this code."""
    prefix = () if release is None else release.prefix
    return KafkaliteCluster(
        directory / "cluster",
        overrides={"zookeeper.session.timeout.ms": _SESSION_MS, "group.initial.rebalance.delay.ms": 0},
        command_prefix=prefix,
        registry=RegistryProcess(directory / "registry", command_prefix=prefix),
    )


def change(server: Server, release: LastRelease, *, back: bool = False) -> None:
    """Restart a server of the release as this code; ``back``: one of this code as the release."""
    if server.running:
        assert runs(server, release) != back
        assert server.stop() == 0
    server.command_prefix = release.prefix if back else ()
    assert runs(server.start(), release) == back


def roll(
    cluster: KafkaliteCluster,
    release: LastRelease,
    *,
    back: bool = False,
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Change the brokers one by one, each when the one before is in sync and leads again."""
    for broker in cluster.brokers.values():
        change(broker, release, back=back)
        settle(cluster)
        after_each()


def settle(cluster: KafkaliteCluster) -> None:
    """Wait until all replicas are in sync, and the first ones lead."""
    cluster.wait_in_sync()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        wait_until(lambda: not any(admin.elect_leaders().values()), "the first replicas to lead")


def runs(server: Server, release: LastRelease) -> bool:
    """Whether a server's process has loaded the kernel of a release."""
    return str(release.tree) in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
