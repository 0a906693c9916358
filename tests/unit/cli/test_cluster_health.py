"""What the exit code of ``cluster status --exit-code`` says of brokers and partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.cli.cluster import health as health_module
from spark_kafkalite.cli.cluster.health import Health, find_health
from spark_kafkalite.client.admin.cluster import ClusterDescription
from spark_kafkalite.client.network.metadata import Node, PartitionInfo, TopicInfo

NODES = tuple(Node(number, "127.0.0.1", 9091 + number) for number in (1, 2, 3))


def found(
    monkeypatch: pytest.MonkeyPatch,
    *partitions: tuple[int, tuple[int, ...]],
    needed: int = 1,
    controller: int = 1,
    live: tuple[int, ...] = (1, 2, 3),
    unreachable: tuple[int, ...] = (),
) -> Health:
    """Return the health of a cluster whose partitions have these leaders, and these replicas in sync."""
    infos = tuple(
        PartitionInfo(number, leader, 5, (1, 2, 3), isr, ()) for number, (leader, isr) in enumerate(partitions)
    )
    nodes = tuple(node for node in NODES if node.node_id in live)
    admin: Any = SimpleNamespace(
        describe_cluster=lambda: ClusterDescription("id", controller, nodes),
        describe_topics=lambda: {"t": TopicInfo("t", b"i" * 16, False, infos)},
        list_partition_reassignments=dict,
        describe_topic_settings=lambda *_: {"t": {"min.insync.replicas": SimpleNamespace(value=str(needed))}},
    )
    monkeypatch.setattr(health_module, "can_connect", lambda _, port: port - 9091 not in unreachable)
    return find_health(admin)


@pytest.mark.parametrize(
    ("partitions", "more", "code", "text"),
    [
        ([(1, (1, 2, 3)), (2, (3, 2, 1))], {}, 0, "all 2 partitions are led and in sync"),
        ([], {}, 0, "all 0 partitions are led and in sync"),
        ([(1, (1, 2, 3)), (2, (2, 3))], {}, 1, "1 of 2 partitions under-replicated"),
        ([(1, (1, 2, 3))], {"unreachable": (3,)}, 1, "no connection to broker 3"),
        ([(1, (1, 2, 3))], {"controller": -1}, 1, "no controller is known"),
        ([(-1, (1, 2, 3))], {}, 3, "1 of 1 partitions without a live leader"),
        (
            [(3, (1, 2, 3))],
            {"live": (1, 2)},
            3,
            "1 of 1 partitions without a live leader",
        ),
        ([(3, (1, 2, 3))], {"unreachable": (3,)}, 3, "no connection to broker 3"),
        (
            [(1, (1,))],
            {"needed": 2},
            3,
            "1 of 1 partitions refuse acks=all; 1 of 1 partitions under-replicated",
        ),
    ],
)
def test_the_worst_that_is_found_decides(
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[tuple[int, tuple[int, ...]]],
    more: dict[str, Any],
    code: int,
    text: str,
) -> None:
    health = found(monkeypatch, *partitions, **more)
    assert (health.exit_code, health.text()) == (code, text)
