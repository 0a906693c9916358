"""``kafkalite groups`` and ``kafkalite offsets``: what they print and change, and say when something is wrong.

The commands run in this process, against brokers in others. Registry groups lie in an embedded registry of this
process, which stands in for the session that a command would open: what it says over ZooKeeper is tested in
tests/interop.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as OtherConsumer

from spark_kafkalite import Admin, Producer
from spark_kafkalite.cli.groups import options as group_options
from spark_kafkalite.cli.main import run
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.registry import consumer_nodes, zookeeper
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import BrokerRegistration, broker_path
from tests.interop.support.assigned_member import assigned_member

RECORDS = 10
_numbers = count()


@pytest.fixture
def group() -> str:
    return f"commanded-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, bootstrap: str, group: str) -> str:
    """Three partitions of ten records, a second apart, the last one half an hour old."""
    name = f"topic-of-{group}"
    admin.create_topic(name, 3, 1)
    newest_ms = time.time_ns() // 1_000_000 - 1_800_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(3 * RECORDS):
            at_ms = newest_ms - 1000 * (RECORDS - 1 - number // 3)
            producer.send(name, b"%d" % number, partition=number % 3, timestamp_ms=at_ms)
    return name


class Result:
    """What one command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[list[str]]:
        """The table without its headings."""
        return [line.split() for line in self.out.splitlines()[1:]]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def kafkalite(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    def kafkalite(*arguments: str, code: int = 0, at: str | None = bootstrap) -> Result:
        capsys.readouterr()
        ended = run([*arguments, *(("--bootstrap-server", at) if at is not None else ())])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return Result(ended, out, err)

    return kafkalite


@pytest.fixture
def member(bootstrap: str, group: str, topic: str) -> Iterator[OtherConsumer]:
    with assigned_member(bootstrap, group, topic, client_id="reader", auto_offset_reset="earliest") as consumer:
        yield consumer


def offsets_of(admin: Admin, group: str) -> list[int]:
    return [each.offset for each in admin.group_offsets(group).values()]


def test_the_life_of_a_group(kafkalite: Command, admin: Admin, group: str, topic: str) -> None:
    planned = kafkalite("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    assert planned.rows == [[group, topic, str(number), "0", "-", "-", "new", "group"] for number in range(3)]
    assert "this was a dry run, --execute does it" in planned.err
    assert admin.group_offsets(group) == {}
    done = kafkalite("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert (done.rows, done.err) == (planned.rows, f"kafkalite: 3 offsets of group {group} set\n")
    assert offsets_of(admin, group) == [0, 0, 0]
    assert group in kafkalite("groups", "--list").out.splitlines()
    assert [group, "Empty"] in kafkalite("groups", "list", "--state").rows
    assert [group, "Empty"] in kafkalite("groups", "list", "--state", "empty,dead").rows
    assert group not in kafkalite("groups", "list", "--state", "Stable").out
    assert group in {each["group"] for each in kafkalite("groups", "list", "--json").json}
    deleted = kafkalite("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:1-2")
    assert deleted.rows == [[group, topic, "1", "0"], [group, topic, "2", "0"]]
    again = kafkalite("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:1-2")
    assert again.out == f"Nothing to delete: group {group} has no such offsets.\n"
    assert kafkalite("groups", "--delete", "--group", group).out == f"Deleted group {group}.\n"
    assert group not in kafkalite("groups", "list").out.splitlines()
    gone = kafkalite("groups", "delete", "--group", group, code=1)
    assert f"group '{group}' cannot be deleted: there is no group '{group}'" in gone.err


def test_describe_shows_lag_in_records_and_in_seconds(kafkalite: Command, admin: Admin, group: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(group, {first: CommittedOffset(4, "noted"), second: RECORDS})
    shown = kafkalite("groups", "describe", "--group", group)
    assert f"warning: group {group} has no active members" in shown.err
    (behind, done) = shown.rows
    assert behind[:6] == [group, topic, "0", "4", "10", "6"]
    assert 1805 <= float(behind[6]) < 1900
    assert done == [group, topic, "1", "10", "10", "0", "0.0", "-", "-", "-"]
    verbose = kafkalite("groups", "--describe", "--group", group, "--offsets", "--verbose")
    assert verbose.rows[0][-3:] == ["0", "-", "noted"]
    (described,) = kafkalite("groups", "describe", "--group", group, "--json").json
    assert (described["state"], described["members"]) == ("Empty", [])
    assert [each["lag"] for each in described["offsets"]] == [6, 0]
    assert described["offsets"][0]["lag_seconds"] == pytest.approx(float(behind[6]), abs=30)
    state = kafkalite("groups", "describe", "--group", group, "--state").rows
    assert [state[0][0], *state[0][-2:]] == [group, "Empty", "0"]
    assert group in kafkalite("groups", "describe", "--all-groups", "--state").out


def test_describe_tells_of_records_that_are_gone(kafkalite: Command, admin: Admin, group: str, topic: str) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 15})
    admin.delete_records({TopicPartition(topic, 0): 6})
    warnings = kafkalite("groups", "describe", "--group", group).err
    assert f"{topic}-0: 4 records after the offset 2 of group {group} have been deleted from the log" in warnings
    assert f"{topic}-1: the offset 15 of group {group} lies beyond the log's end, 10" in warnings


def test_a_group_with_a_member(
    kafkalite: Command, admin: Admin, group: str, topic: str, member: OtherConsumer, tmp_path: Path
) -> None:
    shown = kafkalite("groups", "describe", "--group", group)
    assert [row[2] for row in shown.rows] == ["0", "1", "2"]
    assert all(row[-3].startswith("reader-") and row[-1] == "reader" for row in shown.rows)
    (row,) = kafkalite("groups", "describe", "--group", group, "--members", "--verbose").rows
    assert row[-4:] == ["reader", "3", f"{topic}(0,1,2)", "-"]
    assert kafkalite("groups", "describe", "--group", group, "--state").rows[0][-3:] == ["range", "Stable", "1"]
    reset = ("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-latest")
    assert f"group {group} has 1 live member: --execute will be refused" in kafkalite(*reset).err
    before = admin.group_offsets(group)
    refused = kafkalite(*reset, "--execute", code=1)
    assert f"group '{group}' has 1 live member in kafka (reader at 127.0.0.1), so its offsets cannot be moved" in (
        refused.err
    )
    assert admin.group_offsets(group) == before
    # One of two groups is at work, so the other is left alone too.
    both = tmp_path / "both.csv"
    both.write_text(f"{group}-idle,{topic},0,1\n{group},{topic},0,1\n")
    other = ("--group", f"{group}-idle", "--group", group)
    kafkalite("groups", "reset-offsets", *other, "--from-file", str(both), "--execute", code=1)
    assert admin.group_offsets(f"{group}-idle") == {}
    assert "it has members; stop its consumers first" in kafkalite("groups", "delete", "--group", group, code=1).err
    copied = ("groups", "copy-offsets", "--group", f"{group}-from", "--to-group", group, "--execute")
    admin.alter_group_offsets(f"{group}-from", {TopicPartition(topic, 0): 1})
    assert "1 live member" in kafkalite(*copied, code=1).err


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (("--to-earliest",), ["0", "0", "0"]),
        (("--to-latest",), ["10", "10", "10"]),
        (("--to-offset", "7"), ["7", "7", "7"]),
        (("--to-offset", "70"), ["10", "10", "10"]),
        (("--shift-by", "-3"), ["1", "2", "3"]),
        (("--shift-by", "5"), ["9", "10", "10"]),
        (("--to-current",), ["4", "5", "6"]),
        (("--to-datetime", "2001-01-01T00:00:00.000"), ["0", "0", "0"]),
        (("--by-duration", "PT30M5.5S"), ["4", "4", "4"]),
        (("--by-duration", "1s"), ["10", "10", "10"]),
    ],
)
def test_scenarios(
    kafkalite: Command, admin: Admin, group: str, topic: str, scenario: tuple[str, ...], expected: list[str]
) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, number): 4 + number for number in range(3)})
    shown = kafkalite("groups", "reset-offsets", "--group", group, "--all-topics", *scenario, "--execute")
    new = [row[3] for row in shown.rows]
    if scenario[0] == "--by-duration" and scenario[1] != "1s":
        # The records were written some moments ago.
        assert all(int(each) <= int(wanted) for each, wanted in zip(new, expected, strict=True))
        expected = new
    assert new == expected
    assert [str(each) for each in offsets_of(admin, group)] == expected


def test_csv_goes_out_and_comes_back(kafkalite: Command, admin: Admin, group: str, topic: str, tmp_path: Path) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, number): 4 + number for number in range(3)})
    current = ("groups", "reset-offsets", "--group", group, "--all-topics", "--to-current")
    exported = kafkalite(*current, "--export").out
    assert list(csv.reader(exported.splitlines())) == [[topic, str(number), str(4 + number)] for number in range(3)]
    file = tmp_path / "offsets.csv"
    assert kafkalite(*current, "--export", str(file)).rows[0][:4] == [group, topic, "0", "4"]
    assert file.read_text() == exported
    admin.delete_groups([group])
    kafkalite("groups", "--reset-offsets", "--group", group, "--from-file", str(file), "--execute")
    assert offsets_of(admin, group) == [4, 5, 6]
    file.write_text(f"{topic},0\n")
    bad = kafkalite("groups", "reset-offsets", "--group", group, "--from-file", str(file), code=2)
    assert f"offsets.csv, line 1: '{topic},0' has 2 fields; lines are topic,partition,offset" in bad.err
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in kafkalite("groups", "reset-offsets", "--group", group, "--from-file", str(file), code=2).err
    file.write_text(f"{topic},7,0\n")
    missing = kafkalite("groups", "reset-offsets", "--group", group, "--from-file", str(file), code=1)
    assert f"topic {topic} has no partition 7; it has 0 to 2" in missing.err


def test_a_group_that_a_reset_would_make_is_noted(kafkalite: Command, admin: Admin, group: str, topic: str) -> None:
    reset = ("groups", "reset-offsets", "--group", group, "--topic", f"{topic}:0")
    assert kafkalite(*reset, "--to-earliest").rows == [[group, topic, "0", "0", "-", "-", "new", "group"]]
    noted = kafkalite(*reset, "--to-offset", "99", "--json").json["offsets"]
    assert [each["note"] for each in noted] == ["new group; 99 is after the log's end"]
    kafkalite(*reset, "--to-earliest", "--execute")
    assert kafkalite(*reset, "--to-earliest").rows == [[group, topic, "0", "0", "0", "0"]]


def test_offsets_are_copied_between_groups(kafkalite: Command, admin: Admin, group: str, topic: str) -> None:
    noted = CommittedOffset(4, "noted", 0)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): noted, TopicPartition(topic, 1): 5})
    copy = ("groups", "copy-offsets", "--group", group, "--to-group", f"{group}-copy")
    assert kafkalite(*copy).rows == [
        [f"{group}-copy", topic, "0", "4", "-", "-"],
        [f"{group}-copy", topic, "1", "5"] + ["-"] * 2,
    ]
    kafkalite(*copy, "--topic", f"{topic}:0", "--execute")
    assert admin.group_offsets(f"{group}-copy") == {TopicPartition(topic, 0): noted}
    result = kafkalite(*copy, "--execute", "--json").json
    assert result["executed"] and [each["change"] for each in result["offsets"]] == [0, None]
    assert kafkalite("offsets", "diff", "--group", group, "--with-group", f"{group}-copy").out.endswith("the same.\n")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 9})
    differs = kafkalite("offsets", "diff", "--group", group, "--with-group", f"{group}-copy", code=1)
    assert [line.split() for line in differs.out.splitlines()[1:]] == [[topic, "0", "9", "4", "-5"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("describe",), 2, "name the group with --group NAME, or give --all-groups"),
        (("describe", "--group", "g", "--all-groups"), 2, "--group and --all-groups exclude each other"),
        (("describe", "--group", "nobody"), 1, "there is no group 'nobody'; 'kafkalite groups list' shows those"),
        (("list", "--state", "Stabel"), 2, "--state Stabel: there is no such state; the states are Preparing"),
        (("reset-offsets", "--group", "g", "--to-latest"), 2, "name topics with --topic NAME[:N,N], or give"),
        (
            ("reset-offsets", "--group", "g", "--topic", "t"),
            2,
            "name a new position: one of --to-earliest, --to-latest",
        ),
        (
            ("reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--to-offset", "1"),
            2,
            "--to-latest and --to-offset: name one scenario only",
        ),
        (
            ("reset-offsets", "--group", "g", "--topic", "t", "--to-datetime", "noon"),
            2,
            "--to-datetime: 'noon' is neither a date and time such as 2026-01-31T12:00:00.000",
        ),
        (
            ("reset-offsets", "--group", "g", "--topic", "t", "--by-duration", "noon"),
            2,
            "--by-duration: 'noon' is not a duration: write it like P7D",
        ),
        (
            ("reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--dry-run", "--execute"),
            2,
            "--dry-run and --execute exclude each other",
        ),
        (("reset-offsets", "--group", "nobody", "--all-topics", "--to-latest"), 1, "there is no group 'nobody'"),
        (("reset-offsets", "--group", "g", "--topic", "none", "--to-latest"), 1, "no such topic: none"),
        (
            ("reset-offsets", "--group", "g", "--topic", "a b", "--to-latest"),
            2,
            "--topic a b: Topic name is invalid: 'a b'",
        ),
        (("reset-offsets", "--group", "g", "--topic", "t:x", "--to-latest"), 2, "--topic t:x: not of the form"),
        (
            ("reset-offsets", "--group", "g", "--topic", "t", "--from-file", "f"),
            2,
            "--from-file names its own partitions: leave out --topic",
        ),
        (
            ("reset-offsets", "--group", "g", "--from-file", "/no/such"),
            2,
            "--from-file /no/such: No such file or directory",
        ),
        (("copy-offsets", "--group", "g", "--to-group", "g"), 2, "--group and --to-group are the same, 'g'"),
        (("copy-offsets", "--group", "nobody", "--to-group", "g"), 1, "there is no group 'nobody'"),
        (("delete-offsets", "--group", "nobody", "--topic", "t"), 1, "there is no group 'nobody'"),
        (("delete-offsets", "--group", "g"), 2, "name topics with --topic NAME[:N,N], or give --all-topics"),
    ],
)
def test_errors_say_what_is_wrong(kafkalite: Command, arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in kafkalite("groups", *arguments, code=code).err


def test_no_broker(kafkalite: Command) -> None:
    assert "is a broker running there?" in kafkalite("groups", "list", at="127.0.0.1:1", code=1).err


# In the registry ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A session with a registry that knows the broker; commands open more of them."""
    with EmbeddedRegistry(tmp_path / "registry") as registry:
        monkeypatch.setattr(zookeeper, "open_zookeeper", lambda *_, **__: EmbeddedStore(registry))
        session = EmbeddedStore(registry)
        host, _, port = bootstrap.partition(":")
        data = BrokerRegistration(1, host, int(port)).encode()  # type: ignore[arg-type]
        session.create(broker_path(1), data, ephemeral=True, make_parents=True).result()
        yield session
        session.close()


REGISTRY = ("--zookeeper", "127.0.0.1:2181")


def commit(store: Store, group: str, topic: str, *offsets: int) -> None:
    for number, offset in enumerate(offsets):
        data = consumer_nodes.encode_offset(offset)
        store.create(consumer_nodes.offset_path(group, topic, number), data, make_parents=True).result()


def join(store: Store, group: str, topic: str) -> Callable[[], None]:
    """Have a consumer own partition 0; returns what makes it leave."""
    path = consumer_nodes.consumer_id_path(group, f"{group}_host-1-a")
    data = ConsumerRegistration({topic: 1}).encode()
    store.create(path, data, ephemeral=True, make_parents=True).result()
    owner = consumer_nodes.encode_owner(f"{group}_host-1-a-0")
    owned = consumer_nodes.owner_path(group, topic, 0)
    store.create(owned, owner, ephemeral=True, make_parents=True).result()

    def leave() -> None:
        store.delete(owned).result()
        store.delete(path).result()

    return leave


def test_registry_groups(kafkalite: Command, store: Store, group: str, topic: str) -> None:
    def registry(*arguments: str, code: int = 0) -> Result:
        # Without --bootstrap-server: the registry names the brokers.
        return kafkalite(*arguments, *REGISTRY, at=None, code=code)

    assert registry("groups", "list").out == ""
    commit(store, group, topic, 4, 10)
    leave = join(store, group, topic)
    assert registry("groups", "list", "--state").rows == [[group, "Stable"]]
    shown = registry("groups", "describe", "--group", group)
    assert [row[:6] for row in shown.rows] == [
        [group, topic, "0", "4", "10", "6"],
        [group, topic, "1", "10", "10", "0"],
    ]
    assert [row[7] for row in shown.rows] == [f"{group}_host-1-a-0", "-"]
    (row,) = registry("groups", "describe", "--group", group, "--members", "--verbose").rows
    assert row == [group, f"{group}_host-1-a", "-", "-", "-", "1", f"{topic}(0)", "static:", topic, "x", "1"]
    assert registry("groups", "describe", "--group", group, "--state").rows[0][-3:] == ["range", "Stable", "1"]
    reset = ("groups", "reset-offsets", "--group", group, "--all-topics", "--shift-by", "-2")
    assert [row[3] for row in registry(*reset).rows] == ["2", "8"]
    assert "1 live member in zookeeper" in registry(*reset, "--execute", code=1).err
    assert "cannot be deleted" in registry("groups", "delete", "--group", group, code=1).err
    leave()
    registry(*reset, "--execute")
    assert store.get(consumer_nodes.offset_path(group, topic, 1)).result()[0] == b"8"
    registry("groups", "copy-offsets", "--group", group, "--to-group", f"{group}-b", "--execute")
    assert registry("groups", "list").out.splitlines() == [group, f"{group}-b"]
    registry("groups", "delete-offsets", "--group", group, "--all-topics")
    registry("groups", "delete", "--group", group, "--group", f"{group}-b")
    assert registry("groups", "list").out == ""
    assert (
        "there is no group 'nobody' in the registry" in registry("groups", "describe", "--group", "nobody", code=1).err
    )


def test_registry_consumers_whose_offsets_are_at_the_coordinator(
    kafkalite: Command, admin: Admin, store: Store, group: str, topic: str
) -> None:
    leave = join(store, group, topic)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 1})
    shown = kafkalite("groups", "describe", "--group", group, *REGISTRY)
    assert [row[:6] for row in shown.rows] == [[group, topic, "0", "7", "10", "3"]]
    assert "keeps offsets at its coordinator" in shown.err
    rewind = ("offsets", "rewind", "--group", group, "--all-topics", "--to-earliest", "--execute", *REGISTRY)
    assert "1 live member in zookeeper" in kafkalite(*rewind, code=1).err
    leave()
    kafkalite(*rewind)
    assert offsets_of(admin, group) == [0, 0]


def test_a_stopped_group_is_migrated_to_the_brokers_and_back(
    kafkalite: Command, admin: Admin, store: Store, group: str, topic: str
) -> None:
    commit(store, group, topic, 4, 5, 6)
    leave = join(store, group, topic)
    migrate = ("offsets", "migrate", "--group", group, *REGISTRY, "--to")
    refused = kafkalite(*migrate, "kafka", "--execute", code=1)
    assert "1 live member in zookeeper" in refused.err and "its offsets cannot be migrated" in refused.err
    assert admin.group_offsets(group) == {}
    leave()
    assert [row[3:6] for row in kafkalite(*migrate, "kafka").rows] == [
        ["4", "-", "4"],
        ["5", "-", "5"],
        ["6", "-", "6"],
    ]
    assert admin.group_offsets(group) == {}
    done = kafkalite(*migrate, "kafka", "--from", "zookeeper", "--execute")
    assert "start its consumers with offsets.storage=kafka" in done.err
    assert offsets_of(admin, group) == [4, 5, 6]
    assert "the same" in kafkalite("offsets", "diff", "--group", group, *REGISTRY).out
    # The group goes on at the brokers; the way back takes only what is ahead.
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 8, TopicPartition(topic, 1): 2})
    assert [row[3:5] for row in kafkalite("offsets", "show", "--group", group, *REGISTRY).rows] == [
        ["8", "4"],
        ["2", "5"],
        ["6", "6"],
    ]
    assert [row[:4] for row in kafkalite("offsets", "diff", "--group", group, *REGISTRY, code=1).rows] == [
        [topic, "0", "8", "4"],
        [topic, "1", "2", "5"],
    ]
    result = kafkalite(*migrate, "zookeeper", "--execute", "--json").json
    assert [each["new_offset"] for each in result["offsets"]] == [8, 5, 6]
    assert [store.get(consumer_nodes.offset_path(group, topic, each)).result()[0] for each in range(3)] == [
        b"8",
        b"5",
        b"6",
    ]
    assert offsets_of(admin, group) == [8, 2, 6]


def test_a_rewind_goes_back_in_both_storages_and_never_forward(
    kafkalite: Command, admin: Admin, store: Store, group: str, topic: str
) -> None:
    commit(store, group, topic, 4, 7, 1)
    admin.alter_group_offsets(group, {TopicPartition(topic, number): 8 - 3 * number for number in range(3)})
    rewind = ("offsets", "rewind", "--group", group, "--all-topics", "--to-offset", "5", *REGISTRY)
    planned = kafkalite(*rewind)
    assert [row[2:6] for row in planned.rows] == [["0", "5", "4", "8"], ["1", "5", "7", "5"]]
    assert "1 offset of group" in planned.err and "would not go back" in planned.err
    kafkalite(*rewind, "--execute")
    assert offsets_of(admin, group) == [5, 5, 2]
    assert [store.get(consumer_nodes.offset_path(group, topic, each)).result()[0] for each in range(3)] == [
        b"4",
        b"5",
        b"1",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("migrate", "--group", "g", "--to", "kafka"), 2, "this needs --zookeeper HOST:PORT"),
        (("migrate", "--group", "g", "--to", "kafka", "--from", "kafka"), 2, "there is nothing to move"),
        (("migrate", "--group", "g", "--to", "kafka", "--zookeeper", "zk"), 2, "--zookeeper zk: not of the form"),
        (
            ("migrate", "--group", "g", "--to", "kafka", "--zookeeper", "127.0.0.1:1"),
            1,
            "--zookeeper 127.0.0.1:1: nothing there answers in ZooKeeper's protocol within 1 s",
        ),
        (("show", "--group", "nobody"), 1, "there is no group 'nobody'"),
        (("diff", "--group", "g"), 2, "name what to compare with: --zookeeper HOST:PORT, or --with-group NAME"),
        (("rewind", "--group", "g", "--to-earliest"), 2, "name topics with --topic"),
        (("rewind", "--group", "nobody", "--all-topics", "--to-earliest"), 1, "there is no group 'nobody'"),
    ],
)
def test_errors_of_offsets_say_what_is_wrong(
    kafkalite: Command, arguments: tuple[str, ...], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_options, "_ZOOKEEPER_WITHIN_S", 1.0)
    assert said in kafkalite("offsets", *arguments, code=code).err
