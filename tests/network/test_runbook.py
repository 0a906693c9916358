"""The runbook of docs/operations.md: its commands are read from the page, and run on three hosts with ZooKeeper."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_kafkalite.processes.zookeeper import available
from tests.interop.cluster.operations_page import blocks_of
from tests.network.hosts import Network, problem
from tests.network.runbook_hosts import Host, page_properties, zookeepers
from tests.paths import PROJECT
from tests.patience import wait_until
from tests.upgrade.last_release import unpack

pytestmark = [pytest.mark.root, pytest.mark.zookeeper, pytest.mark.soak, pytest.mark.timeout(3600)]

RECORDS = 1_000
Block = Sequence[tuple[str, str]]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    """Three hosts with ZooKeeper, and a fourth; both versions are installed on each."""
    if (reason := problem() or available()) is not None:
        pytest.skip(reason)
    release = unpack(tmp_path)
    with Network([f"host-{number}" for number in (1, 2, 3, 4)]) as network, contextlib.ExitStack() as undo:
        hosts = [Host(network, number, tmp_path) for number in (1, 2, 3, 4)]
        for server in zookeepers(network, hosts[:3], tmp_path):
            undo.callback(server.kill)
            server.start(wait=False)
        for each in hosts:
            undo.callback(each.kill)
            each.install("NEW", PROJECT)
            each.install("OLD", release.tree)
            each.link("NEW")
        yield hosts


def follow(block: Block, here: Host, *, every: Sequence[Host] = (), other: Host | None = None, live: str = "") -> None:
    """Run a block of the page: on ``here`` what it gives no host for, on ``other`` what is for the new one, or for the
    one that goes. A status is asked for until it shows the brokers of ``live``."""
    for command, where in block:
        if "cluster status" in command:
            wait_until(lambda command=command: shown(here.run(f"{command} || true")) == live, live, poll_s=1)  # type: ignore[misc]
            continue
        at = {"": [here], "on each host": every, "on the new host": [other], "on its host": [other]}[where]
        for each in at:
            assert each is not None
            each.run(command)


def test_three_hosts_are_run_by_the_page(hosts: list[Host]) -> None:
    first, second, third, fourth = hosts
    three = hosts[:3]

    install(three)
    (restart, elect) = blocks_of("A rolling restart")
    for each in three:
        follow(restart, each)
    follow(elect, first)
    first.run("kafkalite topics create --topic events --partitions 6 --replication-factor 3")
    first.run(f"seq {RECORDS} | kafkalite produce --topic events")

    _, upgrade, _, back = [block for block in blocks_of("Upgrade and rollback") if "venv" not in block[0][0]]
    for version, steps in (("OLD", back), ("NEW", upgrade)):
        for each in three:
            follow(steps, each)
            assert each.path("/opt/kafkalite").resolve().name == f"kafkalite-{version}"

    fourth.configure(page_properties())
    shutil.copy(first.path("/etc/kafkalite/secret"), fourth.path("/etc/kafkalite/secret"))
    (add,) = blocks_of("Add a broker")
    follow(add, first, other=fourth, live="1 2 3 4")
    assert replicas_of(first, 4)

    (drain,) = blocks_of("Drain a broker")
    follow(drain, first, other=fourth)
    assert not replicas_of(first, 4)

    second.kill()
    shutil.rmtree(second.path("/var/lib/kafkalite"))
    second.path("/var/lib/kafkalite").mkdir()
    (replace,) = blocks_of("Replace a host")
    follow(replace, first, other=second)
    assert replicas_of(first, 2)

    replace_a_disk(third)
    run_a_second_broker(three)
    read = first.run(f"kafkalite consume --topic events --from-beginning --max-messages {RECORDS} 2>/dev/null")
    assert sorted(map(int, read.split())) == list(range(1, RECORDS + 1))


def install(three: list[Host]) -> None:
    """Follow the page; the third host has two log directories."""
    for each in three:
        each.configure(page_properties())
    three[2].configure(page_properties(), log_dirs="/var/lib/kafkalite/a,/var/lib/kafkalite/b")
    ((make, *rest),) = blocks_of("Install and start")
    follow([make], three[0])
    for each in three[1:]:
        shutil.copy(three[0].path("/etc/kafkalite/secret"), each.path("/etc/kafkalite/secret"))
    follow(rest, three[0], every=three, live="1 2 3")


def shown(status: str) -> str:
    """Return the live brokers that a status shows."""
    return " ".join(re.findall(r"(?m)^(\d+) +\d[\d.]+:\d+ ", status))


def replicas_of(host: Host, number: int) -> int:
    """Return how many replicas the status shows for a broker."""
    shown = re.findall(rf"(?m)^{number} +.* (\d+) +\d+$", host.run("kafkalite cluster status"))
    return int(shown[0]) if shown else 0


def replace_a_disk(host: Host) -> None:
    (block,) = blocks_of("Replace a disk")
    (stop, start, look, confirm, *rest) = [command for command, _ in block]
    host.run(stop)
    disk = host.path("/var/lib/kafkalite/b")
    shutil.rmtree(disk)
    disk.mkdir()
    host.run(start)
    (lost,) = wait_until(lambda: set(re.findall(r"log\.dirs\.lost=(\S+): ", host.run(look))), "the id of the disk")
    host.run(confirm.replace("=ID", f"={lost}"))
    for command in rest:
        host.run(command)
    assert "log.dirs.lost" not in host.path("/etc/kafkalite/broker.properties").read_text()
    assert list(disk.glob("events-*"))


def run_a_second_broker(three: list[Host]) -> None:
    (((rack, _),), block) = blocks_of("Several brokers on a host")
    (restart, _) = blocks_of("A rolling restart")
    for each in three:
        each.run(rack.replace("host-1", each.name))
        follow(restart, each)
    follow(block, three[0], live="1 2 3 11")
