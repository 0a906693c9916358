"""Our assignors and what they put on the wire beside those of Apache Kafka's Java client, on random groups."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest

from spark_kafkalite.client.group.assignors import Assignments, GroupMemberSubscription
from spark_kafkalite.client.group.consumer_protocol import Assignment, Subscription
from spark_kafkalite.client.group.settings import assignor
from spark_kafkalite.model import TopicPartition
from tests.interop.support.java_clients import JAVA_SOURCES, compile_java
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab.apache_kafka import logging_options
from tests.lab.java import run_java
from tests.seeds import SEED

pytestmark = [pytest.mark.kafka]

CASES_PER_KIND = 60


class Case(NamedTuple):
    name: str
    counts: dict[str, int]
    members: list[GroupMemberSubscription]
    # What members had before, by member id.
    owned: Assignments = {}

    def lines(self) -> list[str]:
        lines = [f"case {self.name}", *(f"topic {topic} {count}" for topic, count in self.counts.items())]
        for member_id, instance_id, subscription in self.members:
            owned = ",".join(f"{topic}:{number}" for topic, number in subscription.owned)
            lines.append(
                f"member {member_id} {instance_id or '-'} {subscription.generation} "
                f"{','.join(subscription.topics) or '-'} {owned or '-'} "
                f"{'-' if subscription.user_data is None else subscription.user_data.hex()} {subscription.rack or '-'}"
            )
        return [*lines, "end"]

    def assigned(self) -> Assignments:
        return assignor(self.name).assign(self.counts, self.members)


class JavaResult(NamedTuple):
    assigned: dict[str, list[TopicPartition]]
    subscriptions: dict[str, bytes]
    assignments: dict[str, bytes]


@pytest.fixture(scope="module")
def class_path() -> str:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    return compile_java(JAVA_SOURCES / "GroupAssignors.java")


def run_in_java(class_path: str, cases: list[Case]) -> list[JavaResult]:
    text = "\n".join(line for case in cases for line in case.lines()) + "\n"
    done = run_java(class_path, "GroupAssignors", input=text, jvm_options=("-Xmx256m", *logging_options()))
    results = [JavaResult({}, {}, {})]
    for line in done.stdout.splitlines():
        if line == "end":
            results.append(JavaResult({}, {}, {}))
            continue
        member_id, names, subscription, assignment = line.split("\t")
        pairs = [name.rsplit(":", 1) for name in names.split(",") if name != "-"]
        results[-1].assigned[member_id] = [TopicPartition(topic, int(number)) for topic, number in pairs]
        results[-1].subscriptions[member_id] = bytes.fromhex(subscription)
        results[-1].assignments[member_id] = bytes.fromhex(assignment)
    assert len(results) == len(cases) + 1, done.stderr
    return results[:-1]


def random_case(source: random.Random, name: str, *, same_topics: bool) -> Case:
    """A group without a past."""
    letters = "abcdeABZ09._-"
    topics = sorted(
        {"t" + "".join(source.choices(letters, k=source.randint(1, 6))) for _ in range(source.randint(1, 6))}
    )
    counts = {topic: source.choice([0, 1, 2, 3, 5, 12]) for topic in topics}
    some = source.sample(topics, source.randint(1, len(topics)))
    members = []
    for number in range(source.randint(1, 7)):
        wanted = some if same_topics else source.sample(topics, source.randint(1, len(topics)))
        instance_id = f"i{source.randint(0, 9)}-{number}" if source.random() < 0.3 else None
        member_id = f"{''.join(source.choices('abAB-é', k=3))}{number}"
        user_data = assignor(name).user_data((), -1)
        members.append(GroupMemberSubscription(member_id, instance_id, Subscription(tuple(wanted), user_data)))
    return Case(name, counts, members)


def after(source: random.Random, case: Case, assigned: Assignments, generation: int) -> Case:
    """The same group later, when members and partitions have come and gone."""
    counts = {topic: count + source.choice([0, 0, 0, 1, 4]) for topic, count in case.counts.items()}
    members = []
    used = assignor(case.name)
    for member_id, instance_id, subscription in case.members:
        if len(case.members) > 1 and source.random() < 0.2:
            continue
        owned = assigned[member_id]
        members.append(
            GroupMemberSubscription(
                member_id,
                instance_id,
                subscription._replace(
                    owned=tuple(owned) if used.is_cooperative else (),
                    generation=generation,
                    user_data=used.user_data(owned, generation),
                ),
            )
        )
    for number in range(source.randint(0, 2) or not members):
        wanted = case.members[0].subscription.topics
        new = Subscription(wanted, used.user_data((), -1))
        members.append(GroupMemberSubscription(f"new{generation}-{number}", None, new))
    return Case(case.name, counts, members, assigned)


def sets(assigned: Assignments) -> dict[str, set[TopicPartition]]:
    return {member_id: set(partitions) for member_id, partitions in assigned.items()}


def test_groups_without_a_past_get_what_java_gives_them(class_path: str) -> None:
    source = random.Random(SEED)
    cases = [
        random_case(source, name, same_topics=name in ("sticky", "cooperative-sticky") or source.random() < 0.3)
        for name in ("range", "roundrobin", "sticky", "cooperative-sticky")
        for _ in range(CASES_PER_KIND)
    ]
    for case, java in zip(cases, run_in_java(class_path, cases), strict=True):
        assert sets(case.assigned()) == sets(java.assigned), case


def test_sticky_groups_stay_as_even_as_java_keeps_them_and_move_no_more(class_path: str) -> None:
    source = random.Random(SEED)
    cases: list[Case] = []
    for name, _ in itertools.product(("sticky", "cooperative-sticky"), range(CASES_PER_KIND // 3)):
        case = random_case(source, name, same_topics=source.random() < 0.6)
        for generation in (1, 2, 3):
            case = after(source, case, case.assigned(), generation)
            cases.append(case)
    for case, java in zip(cases, run_in_java(class_path, cases), strict=True):
        ours = case.assigned()
        same = len({frozenset(member.subscription.topics) for member in case.members}) == 1
        if same:
            # Which members get one more may differ; how much changes hands does not, nor who has how many.
            assert kept(case, ours) == kept(case, java.assigned), case
            assert total(ours) == total(java.assigned), case
        if same and case.name == "sticky":
            assert sizes(ours) == sizes(java.assigned), case
        elif case.name == "sticky":
            assert unevenness(ours) <= unevenness(java.assigned), case


def owned_before(case: Case) -> dict[str, set[TopicPartition]]:
    return {member.member_id: set(case.owned.get(member.member_id, ())) for member in case.members}


def kept(case: Case, assigned: Assignments) -> int:
    before = owned_before(case)
    return sum(len(before[member_id] & set(partitions)) for member_id, partitions in assigned.items())


def sizes(assigned: Assignments) -> list[int]:
    return sorted(map(len, assigned.values()))


def total(assigned: Assignments) -> int:
    return sum(sizes(assigned))


def unevenness(assigned: Assignments) -> int:
    return sum(size**2 for size in sizes(assigned))


def test_subscriptions_and_assignments_are_the_bytes_that_java_writes(class_path: str) -> None:
    members = [
        GroupMemberSubscription("a", None, Subscription(("t2", "t1", "ü"), None, (), 7, "rack-1")),
        GroupMemberSubscription(
            "b",
            "static",
            Subscription(
                ("t1",), b"\x00\x00\x00\x05",
                (TopicPartition("t2", 3), TopicPartition("t1", 2), TopicPartition("t1", 0)), 5,
            ),
        ),
        GroupMemberSubscription("c", None, Subscription(())),
    ]  # fmt: skip
    case = Case("range", {"t1": 3, "t2": 1, "ü": 2}, members)
    (java,) = run_in_java(class_path, [case])
    for member_id, _, subscription in members:
        data = java.subscriptions[member_id]
        assert subscription.encode() == data
        decoded = Subscription.decode(data)
        assert decoded == subscription._replace(
            topics=tuple(sorted(subscription.topics)), owned=tuple(sorted(subscription.owned))
        )
        assigned = java.assignments[member_id]
        assert Assignment.decode(assigned) == Assignment(tuple(java.assigned[member_id]))
        assert Assignment(tuple(java.assigned[member_id])).encode() == assigned
