"""What ``kafkalite top`` makes of what it sees, and how that fits a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from spark_kafkalite.cli.top.broker_pages import status_address
from spark_kafkalite.cli.top.screen import drawn
from spark_kafkalite.cli.top.view import (
    OFFLINE,
    REFUSES,
    UNDER_REPLICATED,
    BrokerRow,
    GroupRow,
    PartitionRow,
    TopicRow,
    View,
    p99_ms,
    partition_rows,
)
from spark_kafkalite.client.network.metadata import ClusterSnapshot, Node, PartitionInfo, TopicInfo


def view(count: int) -> View:
    """Return a cluster with ``count`` rows of each kind, and names that would break a terminal."""
    return View(
        "cluster",
        1,
        tuple(
            BrokerRow(n, f"h:{n}", True, n == 1, 3, 4, 1.0, 2e6, None, 91.5, 10**9, 70.0, None) for n in range(count)
        ),
        tuple(TopicRow(f"t{n}[red]\x1b[2J", 3, 10**9, 5.5) for n in range(count)),
        tuple(GroupRow(f"g{n}\n[/]\x1b[31m", "Stable", 2, 1, 10**12, -3.0, None) for n in range(count)),
        tuple(PartitionRow(f"p{n}", n, OFFLINE, -1, (1, 2), (1,)) for n in range(count)),
        {"brokers": count, "topics": count, "partitions": count, "groups": count},
        1234.0,
    )


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("height", [24, 40, 70])
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_a_screen_fits_the_terminal(width: int, height: int, count: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(drawn(view(count), width, height, 0.0))
    lines = out.getvalue().rstrip("\n").split("\n")
    # A low terminal shows the heads of all tables; Live cuts what is below.
    assert len(lines) <= max(height, 30)
    assert "\x1b[2J" not in out.getvalue() and "\x1b[31m" not in out.getvalue()
    if count:
        assert any("t0[red]" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_leaves_columns_of_brokers_out_and_cuts_none(width: int) -> None:
    address = "broker-1.kafka.example:9092"
    known = BrokerRow(1, address, True, True, 1000, 3000, 123456.0, 2e6, 3e6, 91.5, 10**9, 70.0, None)
    unknown = BrokerRow(2, address, True, False, 1000, 3000, None, None, None, None, None, None, None)
    for row in (known, unknown):
        out = io.StringIO()
        shown = View("cluster", 1, (row,), (), (), (), {}, 0.0)
        Console(file=out, width=width, height=24, force_terminal=True, color_system=None).print(
            drawn(shown, width, 24, 0.0)
        )
        headings, cells = out.getvalue().split("\n")[3:5]
        assert "\u2026" not in headings + cells
        assert address in cells and "RECORDS/S" in headings and "DISK" in headings
        if width in (60, 200):
            assert ("OUT/S" in headings) == (width == 200)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 130, 200])
def test_a_narrow_terminal_leaves_columns_out_before_it_cuts_names_short(width: int) -> None:
    topic, group = "orders-of-the-second-kind", "billing-of-the-second-kind"
    shown = View(
        "cluster",
        1,
        (),
        (TopicRow(f"{topic}-{'x' * 99}", 100, 1_000_000, 12345.0),),
        (GroupRow(f"{group}-{'x' * 99}", "PreparingRebalance", 12, 1, 1_000_000, 10.0, 1000.0),),
        (PartitionRow(f"{topic}-{'x' * 99}", 100, UNDER_REPLICATED, 1, (1, 2, 3), (1,)),),
        {},
        0.0,
    )
    out = io.StringIO()
    console = Console(file=out, width=width, height=40, force_terminal=True, color_system=None)
    console.print(drawn(shown, width, 40, 0.0))
    text = out.getvalue()
    assert text.count(topic[:15]) == 2 and text.count(group[:20]) == 1
    assert "1,000,000" in text and UNDER_REPLICATED in text and "LAG" in text
    assert ("MEMBERS" in text) == (width in (100, 200)) and ("PARTITIONS" in text) == (width not in (50, 130))


def test_the_first_look_shows_that_it_is_under_way() -> None:
    out = io.StringIO()
    Console(file=out, width=80, height=24).print(drawn(View(), 80, 24, 4.2))
    assert "the brokers are asked for the first time: 4 s" in out.getvalue()


def test_a_problem_is_shown_in_place_of_the_help() -> None:
    out = io.StringIO()
    Console(file=out, width=80, height=24).print(drawn(View(problem="no broker answers"), 80, 24, 0.0))
    assert "no broker answers" in out.getvalue()


def test_partitions_that_need_action_come_with_the_worst_first() -> None:
    def info(number: int, leader: int, isr: tuple[int, ...]) -> PartitionInfo:
        return PartitionInfo(number, leader, 0, (1, 2, 3), isr, ())

    topic = TopicInfo("t", b"", False, (info(0, 1, (1, 2)), info(1, 1, (1,)), info(2, -1, (3,)), info(3, 1, (1, 2, 3))))
    nodes = {number: Node(number, "h", 9092) for number in (1, 2)}
    rows = partition_rows(ClusterSnapshot(nodes=nodes, topics={"t": topic}), {"t": 2})
    assert [(row.partition, row.problem) for row in rows] == [(2, OFFLINE), (1, REFUSES), (0, UNDER_REPLICATED)]
    # Without the setting it cannot be told whether acks=all is refused.
    rows = partition_rows(ClusterSnapshot(nodes=nodes, topics={"t": topic}), {})
    assert [(row.partition, row.problem) for row in rows] == [
        (2, OFFLINE), (0, UNDER_REPLICATED), (1, UNDER_REPLICATED)
    ]  # fmt: skip


def test_the_lag_of_the_loop_is_that_between_two_looks() -> None:
    def buckets(*counts: float) -> list[list[float | None]]:
        return [[0.001, counts[0]], [0.01, counts[1]], [None, counts[2]]]

    assert p99_ms(None, buckets(990, 10, 0)) == 1
    assert p99_ms(None, buckets(900, 100, 0)) == 10
    assert p99_ms(buckets(900, 100, 0), buckets(1000, 100, 0)) == 1
    assert p99_ms(buckets(900, 100, 0), buckets(900, 100, 0)) is None
    # Above the last bound: at least that.
    assert p99_ms(None, buckets(0, 0, 5)) == 10
    # The broker has been restarted.
    assert p99_ms(buckets(900, 100, 0), buckets(5, 0, 0)) is None


@pytest.mark.parametrize(
    ("listener", "host", "address"),
    [
        (None, "10.0.0.5", None),
        ("127.0.0.1:9644", "127.0.0.1", ("127.0.0.1", 9644)),
        ("127.0.0.1:9644", "10.0.0.5", None),
        ("localhost:9644", "localhost", ("localhost", 9644)),
        ("0.0.0.0:9644", "10.0.0.5", ("10.0.0.5", 9644)),
        ("[::]:9644", "log-1", ("log-1", 9644)),
        (":9644", "log-1", ("log-1", 9644)),
        ("10.0.0.9:9644", "log-1", ("10.0.0.9", 9644)),
        ("127.0.0.1:0", "127.0.0.1", None),
        ("nonsense", "127.0.0.1", None),
    ],
)
def test_where_a_broker_serves_its_status(listener: str, host: str, address: tuple[str, int] | None) -> None:
    assert status_address(listener, Node(1, host, 9092)) == address


def test_a_view_is_json() -> None:
    document = json.loads(json.dumps(view(2).as_json()))
    assert [row["topic"] for row in document["topics"]] == ["t0[red]\x1b[2J", "t1[red]\x1b[2J"]
    assert document["partitions"][0]["replicas"] == [1, 2]
