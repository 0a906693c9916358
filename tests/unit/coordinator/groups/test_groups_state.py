"""What the records of ``__consumer_offsets`` make: groups and offsets, by a load and by commits alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.groups_state import GroupShard, GroupShards, GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.records import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    RecordEntry,
    decode_key,
    decode_value,
)
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.errors import (
    InvalidCommitOffsetSize,
    KafkaError,
    MessageTooLarge,
    NotCoordinator,
    NotLeaderOrFollower,
    RecordListTooLarge,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.seeds import SEED
from tests.unit.coordinator.groups.group_world import join_request
from tests.unit.coordinator.host_double import HostDouble, until, with_loop

T0 = TopicPartition("t", 0)
EMPTY = GroupMetadata("consumer", 4, None, None, 9)
MEMBER = MemberMetadata("m", None, "c", "/h", 60_000, 10_000, b"subscription", b"share")
STABLE = GroupMetadata("consumer", 4, "range", "m", 9, (MEMBER,))


def commit(offset: int, group: str = "g", partition: int = 0) -> list[RecordEntry]:
    return [(OffsetKey(group, "t", partition), OffsetValue(offset, commit_timestamp_ms=1))]


def group_shards(host: HostDouble, limits: GroupLimits | None = None) -> GroupShards:
    return Shards(host, lambda open_keys: GroupsState(limits or GroupLimits(), open_keys), ManualClock())


async def loaded(host: HostDouble) -> tuple[GroupShards, GroupShard]:
    shards = group_shards(host)
    shards.lead(0, host.leader_epoch)
    await until(lambda: not shards.is_loading)
    return shards, shards.shard_of("g")


def records(host: HostDouble) -> list[list[RecordEntry]]:
    """What was written, by batch."""
    written = host.raw_records()
    return [[(key := decode_key(raw), decode_value(key, value)) for raw, value in batch] for batch in written]


def apply(
    state: GroupsState, entries: Sequence[RecordEntry], at: int = 0, producer: ProducerIdAndEpoch | None = None
) -> None:
    state.apply(entries, range(at, at + len(entries)), producer)


def state_of(*entries: RecordEntry) -> GroupsState:
    state = GroupsState(GroupLimits())
    apply(state, entries)
    return state


def test_a_record_of_a_group_makes_the_group() -> None:
    state = state_of((GroupKey("g"), STABLE), (GroupKey("e"), EMPTY))
    assert (state.groups["g"].generation, state.groups["g"].leader) == (4, "m")
    assert state.groups["g"].members["m"].assignment == b"share"
    assert state.groups["e"].is_empty and state.groups["e"].is_stored
    assert state.summary() == "2 groups with 0 offsets"


def test_offsets_alone_make_a_group_of_which_nothing_is_written() -> None:
    state = state_of(*commit(5))
    assert state.groups["g"].is_empty and not state.groups["g"].is_stored
    apply(state, [(OffsetKey("other", "t", 0), None)])
    assert "other" not in state.groups


P7, P8 = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 3)


def test_offsets_of_a_transaction_are_seen_once_it_is_committed() -> None:
    state = state_of(*commit(5))
    apply(state, commit(9), 1, P7)
    apply(state, commit(3, "new"), 2, P7)
    apply(state, commit(8, partition=1), 3, P8)
    assert {at: value.offset for at, value in state.offsets.of("g").items()} == {T0: 5}
    assert "new" not in state.groups
    # Like what is on its way into the log: expiry leaves it alone, and the group's deletion takes it with it.
    assert state.offsets.pending("g") == {OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)}
    assert state.offsets.keys("new") == [OffsetKey("new", "t", 0)]
    assert state.offsets.has_any("new")
    state.ended(P8, commits=False)
    state.ended(P7, commits=True)
    assert {at: value.offset for at, value in state.offsets.of("g").items()} == {T0: 9}
    assert "new" in state.groups
    assert state.offsets.pending("g") == set()


def test_a_commit_or_tombstone_behind_a_transactions_offset_stays() -> None:
    state = state_of(*commit(5))
    apply(state, [*commit(9), *commit(9, "other")], 1, P7)
    apply(state, [*commit(6), (OffsetKey("other", "t", 0), None)], 3)
    state.ended(P7, commits=True)
    assert {at: value.offset for at, value in state.offsets.of("g").items()} == {T0: 6}
    assert not state.offsets.has_any("other")


def test_a_tombstone_of_a_group_forgets_it_and_leaves_its_offsets() -> None:
    state = state_of((GroupKey("g"), EMPTY), (GroupKey("h"), EMPTY), *commit(5, "h"))
    former = state.groups["h"]
    apply(state, [(GroupKey("g"), None), (GroupKey("h"), None), (GroupKey("never"), None)])
    assert list(state.groups) == ["h"]
    assert state.groups["h"] is not former and not state.groups["h"].is_stored


def test_a_tombstone_that_comes_late_leaves_the_group_that_was_begun_since() -> None:
    state = GroupsState(GroupLimits())
    group = state.group_or_new("g")
    group.join(join_request(needs_member_id=True), 1, 0)
    apply(state, [(GroupKey("g"), None)])
    assert state.holds(group), "somebody was given an id to join it with"
    group = state.group_or_new("h")
    group.join(join_request(), 1, 0)
    apply(state, [(GroupKey("h"), None)])
    assert state.holds(group) and len(group.members) == 1


def test_a_record_that_is_overtaken_changes_nothing_of_a_group_at_work() -> None:
    state = state_of((GroupKey("g"), STABLE))
    group = state.groups["g"]
    group.join(join_request("m"), 1, 0)
    before = group.to_metadata(0)
    apply(state, [(GroupKey("g"), STABLE), (GroupKey("g"), EMPTY)])
    assert state.holds(group) and group.to_metadata(0) == before


def test_applying_record_by_record_and_the_last_of_each_key_is_the_same() -> None:
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    history: list[RecordEntry] = []
    for _ in range(300):
        group = f"g{chance.randrange(6)}"
        if chance.random() < 0.3:
            generation = len(history)
            history.append((GroupKey(group), None if chance.random() < 0.3 else EMPTY._replace(generation=generation)))
        else:
            value = None if chance.random() < 0.3 else OffsetValue(chance.randrange(1000))
            history.append((OffsetKey(group, "t", chance.randrange(3)), value))
    last = [entry for entry in dict(history).items() if entry[1] is not None]
    one, other = state_of(*history), state_of(*last)
    assert {group: dict(one.offsets.of(group)) for group in one.offsets.groups()} == {
        group: dict(other.offsets.of(group)) for group in other.offsets.groups()
    }
    stored = {group_id: group.is_stored for group_id, group in other.groups.items() if group.is_stored}
    # A group without members, offsets or record may still be held for a while; a load does not find it.
    assert {group_id: group.is_stored for group_id, group in one.groups.items() if group.is_stored} == stored


@pytest.mark.parametrize("error", [MessageTooLarge("m"), RecordListTooLarge("r")])
def test_records_that_are_too_large_are_told_as_commits_that_are(error: KafkaError) -> None:
    state = GroupsState(GroupLimits())
    assert type(state.told(error)) is InvalidCommitOffsetSize
    assert type(state.told(NotLeaderOrFollower("n"))) is NotCoordinator


@with_loop
async def test_a_commit_is_shown_when_it_is_committed_and_not_before() -> None:
    host = HostDouble()
    _, shard = await loaded(host)
    await shard.append(commit(1))
    host.held = True
    second, third = shard.append(commit(2)), shard.append(commit(3))
    await until(lambda: len(host.batches) == 2)
    assert shard.state.offsets.of("g")[T0].offset == 1
    assert shard.state.offsets.pending("g") == {OffsetKey("g", "t", 0)}
    host.release()
    await asyncio.gather(second, third)
    assert shard.state.offsets.of("g")[T0].offset == 3
    assert shard.state.offsets.pending("g") == set()


@with_loop
async def test_a_load_finds_what_was_committed() -> None:
    host = HostDouble()
    _, shard = await loaded(host)
    await shard.append([*commit(1), *commit(5, partition=1)])
    await shard.append([*commit(7), *commit(1, "gone"), (OffsetKey("g", "t", 1), None)])
    await shard.append([(OffsetKey("gone", "t", 0), None)])
    await shard.append([(GroupKey("members"), STABLE), (GroupKey("deleted"), EMPTY)])
    await shard.append([(GroupKey("deleted"), None)])
    _, again = await loaded(host)
    for state in (shard.state, again.state):
        assert state.offsets.of("g") == {T0: OffsetValue(7, commit_timestamp_ms=1)}
        assert state.groups["members"].generation == 4
        assert state.groups["g"].is_empty and not state.groups["g"].is_stored
    assert sorted(again.state.groups) == ["g", "members"]


@with_loop
async def test_offsets_under_the_oldest_version_of_a_key_are_the_same_offsets() -> None:
    host = HostDouble()
    host.add((b"\0\1\0\1g\0\1t\0\0\0\0", GroupsState(GroupLimits()).encode(commit(3))[0][1]))
    host.add((b"\0\0\0\1g\0\1t\0\0\0\0", GroupsState(GroupLimits()).encode(commit(4))[0][1]))
    _, shard = await loaded(host)
    assert {each.offset for each in shard.state.offsets.of("g").values()} == {4}


@with_loop
async def test_records_that_cannot_be_read_are_skipped() -> None:
    host = HostDouble()
    _, shard = await loaded(host)
    host.add((b"\0\3\0\1g", b"later"), (None, b"x"), (b"\0\1", b""), (b"\0\2\0\1g", b"\0\7"))
    await shard.append(commit(3))
    _, again = await loaded(host)
    assert again.state.offsets.of("g")[T0].offset == 3


@with_loop
async def test_a_large_commit_is_told_so() -> None:
    host = HostDouble()
    _, shard = await loaded(host)
    host.largest_batch, host.too_large = 5000, MessageTooLarge("too large")
    with pytest.raises(InvalidCommitOffsetSize):
        await shard.append([(OffsetKey("large", "t", 0), OffsetValue(1, metadata="x" * 6000))])
    assert not shard.state.offsets.has_any("large")


def test_a_group_with_a_member_twice_in_a_damaged_record_does_no_harm() -> None:
    state = state_of((GroupKey("g"), STABLE._replace(members=(MEMBER, MEMBER))))
    assert isinstance(state.groups["g"], Group) and len(state.groups["g"].members) == 1
