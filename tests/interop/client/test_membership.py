"""Our consumer as a member of a group: rebalances, callbacks, commits, static members, and what befalls the silent."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Consumer, Producer, Record
from spark_kafkalite.errors import (
    ClosedError,
    ConfigError,
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until

_numbers = itertools.count()
PER_PARTITION = 50


class Member:
    """A consumer that notes what its callbacks are told."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.records: list[Record] = []

    def subscribe(self, topics: list[str] | None = None, **options: Any) -> Member:
        def noting(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.told.append((what, partitions))

        self.consumer.subscribe(
            topics, **{f"on_{what}": noting(what) for what in ("assigned", "revoked", "lost")}, **options
        )
        return self

    def poll(self, timeout_ms: float = 20) -> list[Record]:
        records = self.consumer.poll(timeout_ms)
        self.records += records
        return records

    def assignment(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    def count(self, what: str) -> int:
        return sum(kind == what for kind, _ in self.told)


class Group:
    """Makes the members of one group, and closes them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"group-{next(_numbers)}"
        self.members: list[Member] = []

    def member(self, **settings: Any) -> Member:
        # What a test waits for by polling is soon noticed; what must be told at once is not, by itself.
        defaults = {"heartbeat_interval_ms": 200, "session_timeout_ms": 30_000, "auto_offset_reset": "earliest"}
        settings = {"bootstrap_servers": self.bootstrap, "group_id": self.name, **defaults, **settings}
        member = Member(Consumer(fetch_max_wait_ms=50, **settings))
        self.members.append(member)
        return member

    def close(self) -> None:
        for member in self.members:
            member.consumer.close()


@pytest.fixture
def group(bootstrap: str) -> Iterator[Group]:
    made = Group(bootstrap)
    yield made
    made.close()


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """A topic with four partitions of PER_PARTITION records each; a value is ``partition:number``."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition, number in itertools.product(range(4), range(PER_PARTITION)):
            producer.send(topic, b"%d:%d" % (partition, number), partition=partition)
    return topic


def until(condition: Callable[[], Any], members: Sequence[Member]) -> None:
    """Let the members poll in turn until the condition holds."""

    def holds() -> bool:
        if condition():
            return True
        for member in members:
            member.poll()
        return False

    wait_until(holds, lambda: f"the group to get there; its members heard {[one.told for one in members]}", poll_s=0)


def partitions(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def settled(topic_partitions: int, members: Sequence[Member]) -> Callable[[], bool]:
    """Whether every partition is assigned, to members of one generation that have about as many each."""

    def check() -> bool:
        sizes = [len(member.assignment()) for member in members]
        generations = {member.consumer.generation_id for member in members}
        return sum(sizes) == topic_partitions and max(sizes) - min(sizes) <= 1 and len(generations) == 1

    return check


def test_a_member_reads_everything_and_the_next_one_goes_on_where_it_stopped(group: Group, filled: str) -> None:
    first = group.member().subscribe([filled])
    assert (first.consumer.member_id, first.consumer.generation_id) == ("", -1)
    until(lambda: len(first.records) == 4 * PER_PARTITION, [first])
    assert first.told == [("assigned", partitions(filled, 0, 1, 2, 3))]
    assert first.consumer.member_id.startswith("spark-kafkalite-")
    assert (first.consumer.group_id, first.consumer.generation_id) == (group.name, 1)
    assert {each.value for each in first.records} == {
        b"%d:%d" % each for each in itertools.product(range(4), range(PER_PARTITION))
    }
    first.consumer.commit(
        {TopicPartition(filled, 0): PER_PARTITION, TopicPartition(filled, 1): CommittedOffset(7, "x")}
    )
    assert first.consumer.committed([(filled, 0), (filled, 1), (filled, 2)]) == {
        TopicPartition(filled, 0): CommittedOffset(PER_PARTITION),
        TopicPartition(filled, 1): CommittedOffset(7, "x"),
        TopicPartition(filled, 2): None,
    }


def test_members_share_the_partitions_and_get_those_of_one_that_leaves(group: Group, filled: str) -> None:
    # It says that it leaves: its session lasts longer than this test may.
    first = group.member(session_timeout_ms=600_000).subscribe([filled])
    until(lambda: first.assignment(), [first])
    second = group.member().subscribe([filled])
    until(settled(4, [first, second]), [first, second])
    assert first.told[1:] == [("revoked", partitions(filled, 0, 1, 2, 3)), ("assigned", sorted(first.assignment()))]
    assert not first.assignment() & second.assignment()
    first.consumer.close()
    assert first.told[-1] == ("revoked", sorted(first.told[2][1]))
    until(settled(4, [second]), [second])


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_every_assignor_deals_out_all_partitions(group: Group, filled: str, strategy: str) -> None:
    members = [group.member(partition_assignment_strategy=strategy).subscribe([filled]) for _ in range(3)]
    until(settled(4, members), members)
    assigned = [each for member in members for each in member.assignment()]
    assert sorted(assigned) == partitions(filled, 0, 1, 2, 3)
    until(lambda: {each.value for member in members for each in member.records} >= {b"0:49", b"3:49"}, members)


def test_cooperative_members_keep_what_stays_theirs(group: Group, filled: str) -> None:
    first, second = (group.member(partition_assignment_strategy="cooperative-sticky") for _ in range(2))
    first.subscribe([filled])
    until(lambda: len(first.records) == 4 * PER_PARTITION, [first])
    second.subscribe([filled])
    until(settled(4, [first, second]), [first, second])
    revoked = [each for kind, each in first.told if kind == "revoked"]
    assert len(revoked) == 1
    assert len(revoked[0]) == 2
    assert not set(revoked[0]) & first.assignment()
    assert second.assignment() == set(revoked[0])
    # Nothing was read twice: what stayed kept its position, and what went had been committed before.
    until(lambda: True, [first, second])
    assert len(first.records) == 4 * PER_PARTITION
    assert not second.poll(300)


def test_pause_outlives_a_rebalance(group: Group, filled: str) -> None:
    first = group.member(enable_auto_commit=False).subscribe([filled])
    until(lambda: first.assignment(), [first])
    first.consumer.pause(first.assignment())
    second = group.member(enable_auto_commit=False).subscribe([filled])
    until(settled(4, [first, second]), [first, second])
    assert first.consumer.paused() == first.assignment()
    assert second.consumer.paused() == set()
    before = len(first.records)
    assert not first.poll(300)
    first.consumer.resume(first.assignment())
    until(lambda: len(first.records) - before == 2 * PER_PARTITION, [first, second])


def test_a_pattern_takes_in_topics_and_partitions_that_come_later(group: Group, bootstrap: str) -> None:
    prefix = f"pattern-{next(_numbers)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(f"{prefix}-a", 1, 1)
        admin.create_topic(f"not-{prefix}-a", 1, 1)
        member = group.member(metadata_max_age_ms=500)
        member.subscribe(pattern=f"{prefix}-.*|__.*")
        until(lambda: member.assignment(), [member])
        assert member.assignment() == {TopicPartition(f"{prefix}-a", 0)}
        admin.create_topic(f"{prefix}-b", 2, 1)
        until(lambda: len(member.assignment()) == 3, [member])
        admin.create_partitions({f"{prefix}-a": 3})
        until(lambda: len(member.assignment()) == 5, [member])
        admin.delete_topics([f"{prefix}-b"])
        until(lambda: len(member.assignment()) == 3, [member])
        # Though brokers make topics that clients ask for.
        assert f"{prefix}-b" not in admin.list_topics()


def test_only_the_leader_watches_partition_counts_and_all_members_get_new_ones(
    group: Group, bootstrap: str, topic: str
) -> None:
    members = [group.member(metadata_max_age_ms=500).subscribe([topic]) for _ in range(2)]
    until(settled(4, members), members)
    generation = members[0].consumer.generation_id
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: 6})
    until(settled(6, members), members)
    # One rebalance, and no more when the metadata is looked at again.
    clusters = [member.consumer._cluster for member in members]
    seen = [cluster.snapshot.version for cluster in clusters]
    until(lambda: all(each.snapshot.version > old for each, old in zip(clusters, seen, strict=True)), members)
    until(settled(6, members), members)
    assert {member.consumer.generation_id for member in members} == {generation + 1}


def test_a_static_leader_that_came_back_goes_on_watching_partitions(group: Group, bootstrap: str, topic: str) -> None:
    static = group.member(group_instance_id="leader").subscribe([topic])
    until(lambda: static.assignment(), [static])
    static.consumer.close()
    again = group.member(group_instance_id="leader", metadata_max_age_ms=500).subscribe([topic])
    until(lambda: again.assignment(), [again])
    assert again.consumer.generation_id == 1
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: 6})
    until(lambda: len(again.assignment()) == 6, [again])


def test_another_subscription_takes_the_place_of_the_last(group: Group, bootstrap: str, filled: str) -> None:
    other = f"{filled}-other"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(other, 2, 1)
    member = group.member(partition_assignment_strategy="cooperative-sticky").subscribe([filled])
    until(lambda: member.assignment(), [member])
    member.subscribe([filled, other])
    until(lambda: len(member.assignment()) == 6, [member])
    assert member.told[-1] == ("assigned", partitions(other, 0, 1))
    member.subscribe([other])
    until(lambda: member.assignment() == set(partitions(other, 0, 1)), [member])
    assert ("revoked", partitions(filled, 0, 1, 2, 3)) in member.told
    member.consumer.subscribe([])
    assert member.told[-1] == ("revoked", partitions(other, 0, 1))
    assert member.assignment() == set()
    assert member.consumer.generation_id == -1
    member.consumer.assign([(filled, 3)])
    assert member.assignment() == {TopicPartition(filled, 3)}


def test_a_static_member_restarts_without_a_rebalance(group: Group, filled: str) -> None:
    first = group.member(enable_auto_commit=False).subscribe([filled])
    static = group.member(group_instance_id="static-1", enable_auto_commit=False).subscribe([filled])
    until(settled(4, [first, static]), [first, static])
    generation, assigned, told = first.consumer.generation_id, static.assignment(), len(first.told)
    static.consumer.close()
    again = group.member(group_instance_id="static-1").subscribe([filled])
    until(lambda: again.assignment(), [first, again])
    assert again.assignment() == assigned
    until(lambda: again.records, [first, again])
    assert (first.consumer.generation_id, again.consumer.generation_id) == (generation, generation)
    assert len(first.told) == told


def test_two_of_one_instance_id_cannot_be_and_the_older_one_is_told(group: Group, filled: str) -> None:
    older = group.member(group_instance_id="one").subscribe([filled])
    until(lambda: older.assignment(), [older])
    newer = group.member(group_instance_id="one").subscribe([filled])
    until(lambda: newer.assignment(), [newer])

    with pytest.raises(FencedInstanceId) as caught:
        until(lambda: False, [older])
    for part in (f"group '{group.name}'", "group.instance.id 'one'", "coordinator broker 1", "stop one of them"):
        assert part in str(caught.value)
    assert older.assignment() == set()
    assert older.told[-1] == ("lost", partitions(filled, 0, 1, 2, 3))
    with pytest.raises(FencedInstanceId):
        older.consumer.commit({TopicPartition(filled, 0): 1})
    # It may begin again, and then it is the newer one.
    older.consumer.unsubscribe()
    older.subscribe([filled])
    until(lambda: older.assignment(), [older])


def test_who_does_not_poll_loses_its_partitions_and_cannot_commit(group: Group, filled: str) -> None:
    slow = group.member(max_poll_interval_ms=3_000, enable_auto_commit=False).subscribe([filled])
    until(lambda: slow.records, [slow])
    other = group.member().subscribe([filled])
    until(lambda: len(other.assignment()) == 4, [other])
    with pytest.raises(UnknownMemberId, match=r"max\.poll\.interval\.ms=3000; the member leaves the group"):
        slow.consumer.commit()
    slow.told.clear()
    until(settled(4, [slow, other]), [slow, other])
    assert slow.told[0] == ("lost", partitions(filled, 0, 1, 2, 3))
    slow.consumer.commit()


def test_the_automatic_commit_has_what_polls_returned_and_no_more(group: Group, filled: str) -> None:
    first = group.member(auto_commit_interval_ms=0, max_poll_records=30).subscribe([filled])
    until(lambda: first.records, [first])
    (record, *_) = first.records
    where = TopicPartition(filled, record.partition)
    assert len(first.records) == 30
    committed = first.consumer.committed([where])[where]
    assert committed is None or committed.offset == 0
    first.consumer.pause(first.assignment())
    until(lambda: first.consumer.committed([where])[where] == CommittedOffset(30, leader_epoch=0), [first])
    returned = len(first.records)
    first.consumer.close()
    second = group.member(enable_auto_commit=False).subscribe([filled])
    until(lambda: returned + len(second.records) == 4 * PER_PARTITION, [second])
    second.consumer.close()
    third = group.member().subscribe([filled])
    until(lambda: returned + len(third.records) == 4 * PER_PARTITION, [third])


def test_asynchronous_commits_are_done_in_order_and_report(group: Group, filled: str) -> None:
    member = group.member(enable_auto_commit=False).subscribe([filled])
    until(lambda: member.assignment(), [member])
    where = TopicPartition(filled, 1)
    outcomes: list[tuple[int, Exception | None]] = []
    for offset in range(1, 101):
        member.consumer.commit_async(
            {where: offset}, lambda offsets, error: outcomes.append((offsets[where].offset, error))
        )
    member.consumer.commit_async({TopicPartition("no-such-topic", 0): 1}, lambda _, error: outcomes.append((0, error)))
    member.consumer.commit({where: 200})
    # The one that waits comes after all those that do not.
    assert member.consumer.committed([where]) == {where: CommittedOffset(200)}
    until(lambda: len(outcomes) == 101, [member])
    assert outcomes[:100] == [(offset, None) for offset in range(1, 101)]
    assert isinstance(outcomes[100][1], UnknownTopicOrPartition)
    # Close calls what is left.
    member.consumer.commit_async({where: 300}, lambda offsets, error: outcomes.append((offsets[where].offset, error)))
    member.consumer.close()
    assert outcomes[-1] == (300, None)


def test_a_callback_commits_and_seeks_and_what_it_raises_the_poll_raises(group: Group, filled: str) -> None:
    first = group.member(enable_auto_commit=False)
    where = TopicPartition(filled, 2)

    def revoked(given_up: list[TopicPartition]) -> None:
        first.consumer.commit(dict.fromkeys(given_up, 11))
        raise ValueError("from on_revoked")

    first.consumer.subscribe(
        [filled], on_assigned=lambda _: first.consumer.seek(where, PER_PARTITION - 1), on_revoked=revoked
    )
    until(lambda: len(first.records) == 3 * PER_PARTITION + 1, [first])
    second = group.member(enable_auto_commit=False).subscribe([filled])
    with pytest.raises(ValueError, match="from on_revoked"):
        until(settled(4, [first, second]), [first, second])
    # The rebalance went on all the same.
    first.consumer.subscribe([filled])
    until(settled(4, [first, second]), [first, second])
    assert set(first.consumer.committed(partitions(filled, 0, 1, 2, 3)).values()) == {CommittedOffset(11)}


def test_what_is_given_up_in_the_end_can_still_be_committed(group: Group, filled: str) -> None:
    first = group.member(enable_auto_commit=False)
    first.consumer.subscribe([filled], on_revoked=lambda given_up: first.consumer.commit(dict.fromkeys(given_up, 9)))
    until(first.assignment, [first])
    first.consumer.close()
    again = group.member()
    assert set(again.consumer.committed(partitions(filled, 0, 1, 2, 3)).values()) == {CommittedOffset(9)}


def test_a_topic_that_comes_to_be_is_read(group: Group, bootstrap: str) -> None:
    name = f"later-{next(_numbers)}"
    member = group.member(metadata_max_age_ms=500, allow_auto_create_topics=False).subscribe([name])
    until(lambda: member.count("assigned") == 1, [member])
    assert member.assignment() == set()
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, 2, 1)
        until(lambda: len(member.assignment()) == 2, [member])


def test_a_simple_consumer_commits_while_the_group_has_no_members(group: Group, filled: str) -> None:
    simple = group.member(auto_commit_interval_ms=0, max_poll_records=10)
    simple.consumer.assign([(filled, 0)])
    until(lambda: simple.records, [simple])
    simple.consumer.close()
    again = group.member(max_poll_records=10)
    again.consumer.assign([(filled, 0), (filled, 1)])
    assert again.consumer.position((filled, 0)) == len(simple.records)
    assert again.consumer.position((filled, 1)) == 0
    again.consumer.seek((filled, 1), 5)
    again.consumer.commit()
    assert again.consumer.committed([(filled, 1)]) == {TopicPartition(filled, 1): CommittedOffset(5)}
    member = group.member().subscribe([filled])
    until(lambda: member.assignment(), [member])
    with pytest.raises(KafkaError, match="the group has members, and only they may commit"):
        again.consumer.commit()


def test_positions_of_new_partitions_follow_auto_offset_reset(group: Group, filled: str) -> None:
    none = group.member(auto_offset_reset="none", enable_auto_commit=False).subscribe([filled])
    with pytest.raises(KafkaError, match=r"has not committed an offset and auto\.offset\.reset=none"):
        until(lambda: none.records, [none])
    none.consumer.close()
    latest = group.member(auto_offset_reset="latest").subscribe([filled])
    until(lambda: latest.assignment(), [latest])
    assert latest.consumer.position((filled, 3)) == PER_PARTITION


def test_wakeup_and_close_reach_a_poll_that_waits_for_the_group(group: Group, topic: str) -> None:
    member = group.member().subscribe([topic])
    until(lambda: member.assignment(), [member])
    timer = threading.Timer(0.2, member.consumer.wakeup)
    timer.start()
    # Longer than this test may take.
    assert member.consumer.poll(600_000) == []
    timer.join()
    closer = threading.Timer(0.2, member.consumer.close)
    closer.start()
    with pytest.raises(ClosedError):
        member.consumer.poll(600_000)
    closer.join()
    assert member.told[-1] == ("revoked", partitions(topic, 0, 1, 2, 3))
    with pytest.raises(ClosedError):
        member.consumer.commit()


def test_one_long_poll_takes_part_in_rebalances(group: Group, topic: str) -> None:
    """No records come: the poll that waits for them is the only one, and the group must not notice."""
    first = group.member(max_poll_interval_ms=1_000).subscribe([topic])
    waiting = threading.Thread(target=first.poll, args=(600_000,))
    waiting.start()
    second = group.member().subscribe([topic])
    until(lambda: len(second.assignment()) == 2, [second])
    # Longer than the poll interval.
    time.sleep(1.2)
    assert first.count("lost") == 0
    until(settled(4, [first, second]), [second])
    first.consumer.wakeup()
    waiting.join()


def test_what_cannot_be_in_the_group_is_told_why(group: Group, filled: str) -> None:
    member = group.member(partition_assignment_strategy="roundrobin").subscribe([filled])
    until(lambda: member.assignment(), [member])
    other = group.member(partition_assignment_strategy=["sticky"]).subscribe([filled])
    with pytest.raises(InconsistentGroupProtocol, match=r"JoinGroup is refused: its assignors.*are not those"):
        until(lambda: other.assignment(), [other])
    hasty = group.member(session_timeout_ms=500).subscribe([filled])
    with pytest.raises(InvalidSessionTimeout, match=r"group\.min\.session\.timeout\.ms"):
        until(lambda: hasty.assignment(), [hasty])


def test_a_group_is_either_subscribed_or_assigned_by_hand(group: Group, topic: str) -> None:
    member = group.member().subscribe([topic])
    with pytest.raises(ConfigError, match=r"call unsubscribe\(\) first"):
        member.consumer.assign([(topic, 0)])
    member.consumer.unsubscribe()
    member.consumer.assign([(topic, 0)])
    with pytest.raises(ConfigError, match="assigned by hand"):
        member.subscribe([topic])
    with Consumer(bootstrap_servers=group.bootstrap) as alone:
        for call in (alone.subscribe, alone.commit, alone.commit_async, alone.enforce_rebalance):
            with pytest.raises(ConfigError, match=r"needs a group: set group\.id"):
                call()
        with pytest.raises(ConfigError, match=r"needs a group: set group\.id"):
            alone.committed([(topic, 0)])


def test_a_rebalance_can_be_asked_for(group: Group, topic: str) -> None:
    member = group.member().subscribe([topic])
    until(lambda: member.consumer.generation_id == 1, [member])
    member.consumer.enforce_rebalance("because")
    until(lambda: member.consumer.generation_id == 2, [member])


def test_columns_of_all_members_are_everything(group: Group, filled: str) -> None:
    members = [group.member(partition_assignment_strategy="cooperative-sticky").subscribe([filled]) for _ in range(2)]
    rows: list[tuple[int, int]] = []

    def all_read() -> bool:
        for member in members:
            batch = member.consumer.poll_columns(20)
            if batch is not None:
                rows.extend(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))
        return len(rows) >= 4 * PER_PARTITION

    wait_until(all_read, lambda: f"all rows, of which {len(rows)} came", poll_s=0)
    assert sorted(rows) == list(itertools.product(range(4), range(PER_PARTITION)))


def test_members_outlive_a_crash_of_their_coordinator(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", 4, 1)
        group = Group(broker.bootstrap)
        members = [
            group.member(partition_assignment_strategy="cooperative-sticky", auto_commit_interval_ms=50) for _ in "ab"
        ]
        for member in members:
            member.subscribe(["t"])
        until(settled(4, members), members)
        generation = members[0].consumer.generation_id

        def send_and_read(first: int) -> None:
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                for number in range(first, first + 40):
                    producer.send("t", b"%d" % number, partition=number % 4)
            until(lambda: sum(len(member.records) for member in members) >= first + 40, members)

        send_and_read(0)
        broker.kill()
        for member in members:
            member.poll(200)
        broker.restart()
        send_and_read(40)
        # The group was found again as it was: nobody had to join, and nothing was read twice.
        values = [int(each.value or b"") for member in members for each in member.records]
        assert sorted(values) == list(range(80))
        for member in members:
            member.consumer.commit()
            assert member.count("lost") == 0
            assert member.consumer.generation_id == generation
        group.close()


def test_a_second_close_lets_the_first_one_leave_the_group(admin: Admin, group: Group, filled: str) -> None:
    consumer = group.member().consumer
    entered, go_on = threading.Event(), threading.Event()

    def on_revoked(_: list[TopicPartition]) -> None:
        consumer.close()  # by the callback of a close: nothing more to do
        entered.set()
        assert go_on.wait(PATIENCE_S)

    consumer.subscribe([filled], on_revoked=on_revoked)
    until(consumer.assignment, group.members)
    closers = [threading.Thread(target=consumer.close), threading.Thread(target=consumer.close)]
    closers[0].start()
    assert entered.wait(PATIENCE_S)
    closers[1].start()
    closers[1].join(0.2)
    go_on.set()
    for closer in closers:
        closer.join(PATIENCE_S)
    assert admin.describe_groups([group.name])[group.name].state == "Empty"


def test_on_revoked_commits_while_the_consumer_closes(admin: Admin, group: Group, filled: str) -> None:
    consumer = group.member(enable_auto_commit=False).consumer
    consumer.subscribe([filled], on_revoked=lambda gone: consumer.commit(dict.fromkeys(gone, 7)))
    until(consumer.assignment, group.members)
    consumer.close()
    assert admin.group_offsets(group.name) == {each: CommittedOffset(7) for each in partitions(filled, 0, 1, 2, 3)}
    with pytest.raises(ClosedError):
        consumer.commit({TopicPartition(filled, 0): 8})
