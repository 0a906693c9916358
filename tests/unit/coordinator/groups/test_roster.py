"""The books of a group by themselves: whatever is done to them, they agree."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.coordinator.groups.members import Member
from spark_kafkalite.coordinator.groups.records import MemberMetadata
from spark_kafkalite.coordinator.groups.roster import Roster
from spark_kafkalite.errors import FencedInstanceId, InconsistentGroupProtocol, UnknownMemberId
from tests.seeds import SEED
from tests.unit.coordinator.groups.group_world import join_request


def member(member_id: str, *protocols: str, instance: str | None = None) -> Member:
    return Member.of(member_id, join_request(instance=instance, protocols=[(name, b"s") for name in protocols]))


def roster_of(*members: Member) -> Roster:
    roster = Roster("g")
    for one in members:
        roster.insert(one)
    return roster


def test_the_first_member_leads_and_the_next_one_when_it_goes() -> None:
    first, second = member("a", "range"), member("b", "range")
    roster = roster_of(first, second)
    assert roster.leader == "a"
    roster.remove(first)
    assert roster.leader == "b"
    roster.remove(second)
    assert roster.leader is None


def test_a_member_is_found_by_its_id_and_under_its_instance_id_only() -> None:
    static = member("a", "range", instance="i")
    roster = roster_of(static, member("b", "range"))
    assert roster.find("a", None) is roster.find("a", "i") is static
    assert (roster.id_of("i"), roster.id_of("j"), roster.id_of(None)) == ("a", "", "")
    with pytest.raises(FencedInstanceId, match="i is a now, not b"):
        roster.find("b", "i")
    for member_id, instance in (("c", None), ("a", "j")):
        with pytest.raises(UnknownMemberId):
            roster.find(member_id, instance)


def test_a_static_member_keeps_its_place_under_another_id() -> None:
    static = member("a", "range", instance="i")
    roster = roster_of(static, member("b", "range"))
    roster.unsynced.add("a")
    roster.rename(static, "c")
    assert (roster.leader, roster.static, roster.unsynced) == ("c", {"i": "c"}, {"c"})
    assert list(roster.members) == ["b", "c"] and static.member_id == "c"


def test_the_protocol_that_most_like_best_is_chosen_among_those_that_all_have() -> None:
    roster = roster_of(member("a", "only", "x", "y"), member("b", "y", "x"), member("c", "y", "x"))
    assert roster.choose_protocol() == "y"
    assert roster_of(member("a", "x", "y"), member("b", "y", "x")).choose_protocol() == "x", "the leader's order"


def test_a_member_may_change_all_its_protocols_if_the_others_have_one_of_them() -> None:
    former = member("a", "x")
    roster = roster_of(former, member("b", "x", "y"))
    asked = join_request("a", protocols=[("y", b"")])
    roster.check_protocols(asked, former, "consumer")
    with pytest.raises(InconsistentGroupProtocol, match="shares none with all others"):
        roster.check_protocols(asked, None, "consumer")
    with pytest.raises(InconsistentGroupProtocol):
        roster.check_protocols(asked, former, "connect")
    with pytest.raises(InconsistentGroupProtocol, match="the protocols none"):
        Roster("g").check_protocols(join_request(protocols=[]), None, None)


def test_a_record_with_a_member_or_an_instance_twice_does_no_harm() -> None:
    one = MemberMetadata("a", "i", "c", "/h", 1, 1, b"", b"")
    roster = Roster("g")
    for stored in (one, one, one._replace(member_id="b")):
        roster.insert_stored(stored, "range")
    assert list(roster.members) == ["a"] and roster.static == {"i": "a"}


def test_random_changes_keep_the_books() -> None:
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    roster = Roster("g")
    for number in range(600):
        what = chance.random()
        names = chance.sample(["x", "y", "z"], chance.randrange(1, 4))
        present = list(roster.members.values())
        if what < 0.3 or not present:
            roster.insert(member(f"m{number}", *names, instance=f"i{number}" if chance.random() < 0.4 else None))
            continue
        one = chance.choice(present)
        if what < 0.5:
            roster.unpark(one)
            roster.remove(one)
        elif what < 0.6:
            roster.rename(one, f"m{number}")
        elif what < 0.7:
            roster.update(one, join_request(protocols=[(name, b"t") for name in [*names, names[0]]]))
        elif what < 0.85:
            roster.unpark(one)
            (roster.park_join if chance.random() < 0.5 else roster.park_sync)(one, number)
        else:
            roster.unsynced.add(one.member_id)
        members = list(roster.members.values())
        assert [each.member_id for each in members] == list(roster.members)
        assert roster.leader in roster.members or not members
        assert roster.static == {one.group_instance_id: one.member_id for one in members if one.is_static}
        counted = [name for each in members for name in each.protocol_names]
        assert dict(roster.supporters) == {name: counted.count(name) for name in set(counted)}
        parked = {
            each.join_ticket or each.sync_ticket: each for each in members if each.join_ticket or each.sync_ticket
        }
        assert roster.parked == parked
        assert roster.joined == sum(each.join_ticket is not None for each in members)
        assert roster.unsynced <= roster.members.keys()
        assert roster.member_bytes == sum(each.size_bytes for each in members)
