from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.client.group.assignors import Assignments, GroupMemberSubscription
from spark_kafkalite.client.group.consumer_protocol import Subscription
from spark_kafkalite.client.group.settings import assignor
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import TopicPartition

ALL = ("range", "roundrobin", "sticky", "cooperative-sticky")
STICKY = ALL[2:]


def member(
    name: str,
    topics: Sequence[str],
    *,
    strategy: str = "range",
    instance_id: str | None = None,
    owned: Sequence[TopicPartition] = (),
    generation: int = -1,
) -> GroupMemberSubscription:
    used = assignor(strategy)
    return GroupMemberSubscription(
        name,
        instance_id,
        Subscription(
            tuple(topics),
            used.user_data(owned, generation),
            tuple(owned) if used.is_cooperative else (),
            generation,
        ),
    )


def numbers(assigned: Assignments) -> dict[str, list[str]]:
    return {name: [str(each) for each in partitions] for name, partitions in assigned.items()}


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool | None = None) -> tuple[dict[str, int], list[tuple[str, list[str]]]]:
    """Topics with their partition counts, and members' names with what they subscribed to."""
    counts = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1, max_size=6))
    same = draw(st.booleans()) if same_topics is None else same_topics
    topics = st.lists(st.sampled_from(sorted(counts)), min_size=1, unique=True)
    shared = draw(topics)
    names = draw(st.lists(st.sampled_from("pqrstuvwxyz"), min_size=1, max_size=8, unique=True))
    return counts, [(name, shared if same else draw(topics)) for name in names]


def check_whole(counts: Mapping[str, int], members: Sequence[GroupMemberSubscription], assigned: Assignments) -> None:
    """Every partition that somebody subscribed to belongs to exactly one member, one that subscribed to it."""
    wanted = {topic for each in members for topic in each.subscription.topics}
    given = [each for partitions in assigned.values() for each in partitions]
    assert sorted(given) == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))
    )
    for each in members:
        assert {topic for topic, _ in assigned[each.member_id]} <= set(each.subscription.topics)


@pytest.mark.parametrize("strategy", ALL)
@given(group=groups())
def test_every_partition_has_one_reader_that_wants_it(
    strategy: str, group: tuple[dict[str, int], list[tuple[str, list[str]]]]
) -> None:
    counts, wanted = group
    members = [member(name, topics, strategy=strategy) for name, topics in wanted]
    assigned = assignor(strategy).assign(counts, members)
    check_whole(counts, members, assigned)
    # The order in which members joined does not matter.
    assert assignor(strategy).assign(counts, members[::-1]) == assigned


@pytest.mark.parametrize("strategy", ["roundrobin", *STICKY])
@given(group=groups(same_topics=True))
def test_with_one_subscription_nobody_has_two_more_than_another(
    strategy: str, group: tuple[dict[str, int], list[tuple[str, list[str]]]]
) -> None:
    counts, wanted = group
    assigned = assignor(strategy).assign(counts, [member(*each, strategy=strategy) for each in wanted])
    sizes = [len(partitions) for partitions in assigned.values()]
    assert max(sizes) - min(sizes) <= 1


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    members = [member("b", ["t", "u"]), member("a", ["t", "u"]), member("c", ["u"])]
    assert numbers(assignor("range").assign({"t": 5, "u": 3}, members)) == {
        "a": ["t-0", "t-1", "t-2", "u-0"],
        "b": ["t-3", "t-4", "u-1"],
        "c": ["u-2"],
    }


@given(st.integers(1, 12), st.integers(1, 8))
def test_range_gives_the_same_numbers_of_topics_that_are_joined(partitions: int, size: int) -> None:
    members = [member(f"m{number}", ["clicks", "views"]) for number in range(size)]
    for each in assignor("range").assign({"clicks": partitions, "views": partitions}, members).values():
        assert [number for topic, number in each if topic == "clicks"] == [
            number for topic, number in each if topic == "views"
        ]


def test_a_static_member_keeps_its_place_when_its_member_id_changes() -> None:
    def assigned(member_id: str) -> list[TopicPartition]:
        static = member(member_id, ["t"], instance_id="i2")
        others = [member("a", ["t"]), member("z", ["t"], instance_id="i1")]
        return assignor("range").assign({"t": 7}, [static, *others])[member_id]

    assert assigned("0") == assigned("zz") == [TopicPartition("t", number) for number in (3, 4)]


def test_round_robin_passes_over_members_that_do_not_want_the_topic() -> None:
    members = [member("a", ["t"]), member("b", ["t", "u"]), member("c", ["u"])]
    assert numbers(assignor("roundrobin").assign({"t": 3, "u": 2, "unread": 9}, members)) == {
        "a": ["t-0", "t-2"],
        "b": ["t-1", "u-0"],
        "c": ["u-1"],
    }


@pytest.mark.parametrize("strategy", STICKY)
@given(group=groups(same_topics=True), data=st.data())
def test_who_stays_keeps_what_it_has_up_to_its_share(
    strategy: str, group: tuple[dict[str, int], list[tuple[str, list[str]]]], data: st.DataObject
) -> None:
    counts, wanted = group
    used = assignor(strategy)
    first = used.assign(counts, [member(*each, strategy=strategy) for each in wanted])
    staying = data.draw(st.lists(st.sampled_from(wanted), min_size=1, unique_by=lambda each: each[0]))
    # Members leave and new ones come: cooperative members get what others gave up only in the next round.
    members = [member(*each, strategy=strategy, owned=first[each[0]], generation=1) for each in staying]
    members += [member(f"new{each}", wanted[0][1], strategy=strategy) for each in range(data.draw(st.integers(0, 3)))]
    second = used.assign(counts, members)
    total = sum(counts[topic] for topic in wanted[0][1])
    for name, _ in staying:
        share = total // len(members)
        assert len(set(first[name]) & set(second[name])) >= min(len(first[name]), share)
    if strategy == "sticky":
        check_whole(counts, members, second)


@pytest.mark.parametrize("strategy", STICKY)
@given(group=groups())
def test_what_is_balanced_stays_as_it_is(
    strategy: str, group: tuple[dict[str, int], list[tuple[str, list[str]]]]
) -> None:
    counts, wanted = group
    used = assignor(strategy)
    first = used.assign(counts, [member(*each, strategy=strategy) for each in wanted])
    again = [
        member(name, topics, strategy=strategy, owned=first[name], generation=3) for name, topics in reversed(wanted)
    ]
    second = used.assign(counts, again)
    assert {name: set(partitions) for name, partitions in second.items()} == {
        name: set(partitions) for name, partitions in first.items()
    }


@given(group=groups(same_topics=False))
def test_sticky_leaves_no_move_that_would_even_things_out(
    group: tuple[dict[str, int], list[tuple[str, list[str]]]],
) -> None:
    counts, wanted = group
    members = [member(*each, strategy="sticky") for each in wanted]
    assigned = assignor("sticky").assign(counts, members)
    check_whole(counts, members, assigned)
    for name, partitions in assigned.items():
        for topic, _ in partitions:
            for other, topics in wanted:
                if topic in topics:
                    assert len(partitions) - len(assigned[other]) <= 1, (name, other, topic)


@given(group=groups(), data=st.data())
def test_a_cooperative_partition_has_no_second_owner_and_all_have_one_in_the_end(
    group: tuple[dict[str, int], list[tuple[str, list[str]]]], data: st.DataObject
) -> None:
    counts, wanted = group
    used = assignor("cooperative-sticky")
    owned = used.assign(counts, [member(*each, strategy="cooperative-sticky") for each in wanted])
    names = data.draw(
        st.lists(st.sampled_from([*wanted, ("new", sorted(counts))]), min_size=1, unique_by=lambda e: e[0])
    )
    for generation in range(1, 4):
        members = [
            member(
                name, topics, strategy="cooperative-sticky", owned=owned.get(name, ()),
                generation=generation if name in owned else -1,
            )
            for name, topics in names
        ]  # fmt: skip
        assigned = used.assign(counts, members)
        for name, partitions in assigned.items():
            for other in names:
                if other[0] != name:
                    assert not set(partitions) & set(owned.get(other[0], ()))
        owned = assigned
    check_whole(counts, members, owned)


@pytest.mark.parametrize("strategy", STICKY)
def test_the_newer_generation_is_believed(strategy: str) -> None:
    held = [TopicPartition("t", 0), TopicPartition("t", 1)]
    old = member("old", ["t"], strategy=strategy, owned=held, generation=4)
    new = member("new", ["t"], strategy=strategy, owned=held[:1], generation=5)
    assigned = assignor(strategy).assign({"t": 2}, [old, new])
    assert assigned["old"] == held[1:]
    # The cooperative one waits until the old member has noticed.
    assert assigned["new"] == (held[:1] if strategy == "sticky" else [])


def test_user_data_of_others_costs_stickiness_and_nothing_else() -> None:
    odd = GroupMemberSubscription("odd", None, Subscription(("t",), b"\x00\x00\x00\x05not ours"))
    assert numbers(assignor("sticky").assign({"t": 2}, [odd])) == {"odd": ["t-0", "t-1"]}
    odd = GroupMemberSubscription("odd", None, Subscription(("t",), b"\x01"))
    assert numbers(assignor("cooperative-sticky").assign({"t": 2}, [odd])) == {"odd": ["t-0", "t-1"]}


def test_assignors_are_known_by_javas_names_too() -> None:
    prefix = "org.apache.kafka.clients.consumer."
    for name in ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"):
        assert type(assignor(prefix + name)).__name__ == name
    with pytest.raises(ConfigError, match=r"strategy=fair: must be one of range, roundrobin"):
        assignor("fair")
