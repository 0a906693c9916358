"""``kafkalite top`` on real brokers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.top import looks as looks_module
from spark_kafkalite.cli.top.looks import Looks
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

COMMAND = [sys.executable, "-m", "spark_kafkalite.cli", "top"]


def once(bootstrap: str, *arguments: str) -> dict[str, Any]:
    done = run_command("top", "--once", "--json", "--interval", "0.2", "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_once(bootstrap: str) -> dict[str, Any]:
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topic("top-orders", 2)
        for number in range(30):
            producer.send("top-orders", b"x", partition=number % 2)
        producer.flush()
        admin.alter_group_offsets("top-group", {TopicPartition("top-orders", 0): 5})
        found: dict[str, Any] = {}

        def is_whole() -> bool:
            """A look leaves out what a slow host does not answer in time."""
            found.update(once(bootstrap, "--rows", "1000"))
            ages = [row["lag_seconds"] for row in found["groups"] if row["group"] == "top-group"]
            disks = [row["disk_free_bytes"] for row in found["brokers"]]
            return found["problem"] is None and None not in (*ages, *disks)

        wait_until(is_whole, lambda: f"a look that has everything, not {found}")
    assert [(row["id"], row["address"], row["is_live"]) for row in found["brokers"]] == [(1, bootstrap, True)]
    assert found["brokers"][0]["disk_free_bytes"] > 0
    (topic,) = [row for row in found["topics"] if row["topic"] == "top-orders"]
    assert (topic["partitions"], topic["records"], topic["records_per_s"]) == (2, 30, 0)
    (group,) = [row for row in found["groups"] if row["group"] == "top-group"]
    assert (group["lag"], group["growth_per_s"], group["members"]) == (10, 0, 0)
    assert 0 <= group["lag_seconds"] < PATIENCE_S
    assert found["partitions"] == []
    return found


def test_once(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with BrokerProcess(tmp_path, overrides={"metrics.listener": f"127.0.0.1:{port}"}) as broker:
        check_once(broker.bootstrap)

        def has_status() -> bool:
            (row,) = once(broker.bootstrap)["brokers"]
            return (row["loop_lag_p99_ms"] or 0) > 0 and row["bytes_in_per_s"] is not None

        wait_until(has_status, "what the broker's metrics listener says")


@pytest.mark.kafka
def test_once_on_apache_kafka(apache_kafka: ApacheKafka) -> None:
    assert check_once(apache_kafka.bootstrap)["brokers"][0]["loop_lag_p99_ms"] is None


def test_groups_by_growth(bootstrap: str, admin: Admin) -> None:
    for name in ("far", "falling"):
        admin.create_topic(f"growth-{name}", 1)
    with Producer(bootstrap_servers=bootstrap) as producer:

        def produce(name: str, count: int) -> None:
            for _ in range(count):
                producer.send(f"growth-{name}", b"x")
            producer.flush()

        produce("far", 200)
        produce("falling", 1)
        for name in ("far", "falling"):
            admin.alter_group_offsets(f"growth-{name}", {TopicPartition(f"growth-{name}", 0): 0})
        by = {order: Looks(admin, token=None, groups_by=order) for order in ("lag", "growth")}
        for looks in by.values():
            looks.look(everything=True)
        produce("falling", 100)
        views = {order: looks.look(everything=True) for order, looks in by.items()}
    # Other tests have left groups behind.
    ours = {
        order: [row.group for row in view.groups if row.group.startswith("growth-")] for order, view in views.items()
    }
    assert ours == {"lag": ["growth-far", "growth-falling"], "growth": ["growth-falling", "growth-far"]}


def test_tables_without_json(bootstrap: str) -> None:
    done = run_command("top", "--once", "--interval", "0.2", "--bootstrap-server", bootstrap)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.split("\n\n")] == ["ID", "TOPIC", "GROUP"]


def test_a_pipe_is_no_terminal(bootstrap: str) -> None:
    done = run_command("top", "--bootstrap-server", bootstrap)
    assert done.returncode == 2 and "use --once, or --once --json" in done.stderr
    done = run_command("top", "--json", "--bootstrap-server", bootstrap)
    assert done.returncode == 2 and "add --once" in done.stderr


def test_what_moves_comes_to_the_top_although_a_look_is_bounded(
    bootstrap: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many topics and groups only a few are asked for in each look."""
    for name, value in (("_PARTITIONS_A_LOOK", 8), ("_GROUPS_A_LOOK", 4), ("_TOP_ROWS", 1)):
        monkeypatch.setattr(looks_module, name, value)
    # By their number, not by the time that a look may take.
    for name in ("_LOOK_MS", "_BROKER_MS"):
        monkeypatch.setattr(looks_module, name, PATIENCE_S * 1000)
    for number in range(20):
        admin.create_topic(f"many-{number:02}", 1)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            producer.send(f"many-{number:02}", b"x")
        producer.flush()
        for number in range(12):
            admin.alter_group_offsets(f"many-{number:02}", {TopicPartition(f"many-{number:02}", 0): 0})
        looks = Looks(admin, token=None)
        first = looks.look()
        # The bound is passed by one topic, and by those of the groups.
        assert len(first.topics) < 20 and len(first.groups) == 4

        def moved() -> str:
            for _ in range(50):
                producer.send("many-17", b"x")
                producer.send("many-09", b"x")
            producer.flush()
            view = looks.look()
            assert view.problem is None
            by_growth = max(view.groups, key=lambda row: row.growth_per_s or 0)
            return f"{view.topics[0].topic} {by_growth.group} {len(view.topics) >= 20} {len(view.groups)}"

        wait_until(lambda: moved() in ("many-17 many-09 True 12", "many-09 many-09 True 12"), moved)


def test_the_live_view_ends_with_ctrl_c(bootstrap: str) -> None:
    main, other = pty.openpty()
    with subprocess.Popen([*COMMAND, "--bootstrap-server", bootstrap], stdin=other, stdout=other, stderr=other) as live:
        os.close(other)
        shown = bytearray()

        def read(text: bytes) -> bool:
            if select.select([main], [], [], 0)[0]:
                # The end of a terminal whose program has ended is an error.
                with contextlib.suppress(OSError):
                    shown.extend(os.read(main, 65536))
            return text in shown

        wait_until(lambda: read(b"Brokers (1)") and read(b"Topics by rate"), "the first screen")
        live.send_signal(signal.SIGINT)
        wait_until(lambda: (read(b""), live.poll() is not None)[1], "its end")
        assert live.returncode == 0
        assert b"Traceback" not in shown
    os.close(main)
