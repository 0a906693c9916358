"""C6, C8, C14."""

from __future__ import annotations

import dataclasses

from tests.chaos.history import (
    OK,
    UNKNOWN,
    Assigned,
    Bound,
    Commit,
    Committed,
    Poll,
    Rewind,
    Seek,
)
from tests.chaos.written.stories import AT, Story, T, allowed, breaks, send, values

# C6: readers go forward


@breaks("C6")
def a_reader_is_shown_a_record_again(story: Story) -> None:
    story.shown.insert(5, story.shown[4])


@breaks("C6", "C9")
def a_reader_skips_one(story: Story) -> None:
    del story.shown[5]


@breaks("C6", "C9")
def a_reader_skips_the_first(story: Story) -> None:
    del story.shown[0]


@allowed
def a_reader_passes_over_what_was_never_there(story: Story) -> None:
    """Such as a marker of a transaction."""
    for broker in story.logs:
        last = story.logs[broker][-1]
        story.logs[broker][-1] = dataclasses.replace(last, records=last.records[1:])
    story.sends[8] = send(8, outcome=UNKNOWN)
    del story.shown[8]
    del story.delivered[8]


@allowed
def a_reader_seeks_back(story: Story) -> None:
    story.more += [
        Seek(who="reader", begun=20, ended=20, topic=T, partition=0, offset=3),
        Poll(who="reader", begun=21, ended=21, topic=T, partition=0, records=[(3, "p-3"), (4, "p-4")]),
    ]


@allowed
def a_member_begins_again_where_it_had_committed(story: Story) -> None:
    story.more += [
        Assigned(who="m2", begun=14, ended=14, group="g", generation=2, partitions=[AT]),
        Poll(who="m2", begun=15, ended=15, topic=T, partition=0, records=[(8, "p-8"), (9, "p-9")]),
    ]


# C8: groups


@breaks("C8")
def a_commit_is_forgotten(story: Story) -> None:
    """A coordinator answered, and its successor does not have it."""
    story.more.append(Committed(who="m2", begun=14, ended=14, topic=T, partition=0, group="g", offset=5))


@breaks("C8")
def a_deposed_members_commit_is_taken(story: Story) -> None:
    story.more.append(
        Commit(who="m2", begun=14, ended=14.1, topic=T, partition=0, group="g", offset=5, outcome=OK, generation=0)
    )


@allowed
def an_unanswered_commit_is_not_there(story: Story) -> None:
    story.more += [
        Commit(who="m1", begun=14, ended=15, topic=T, partition=0, group="g", offset=10, outcome=UNKNOWN, generation=1),
        Committed(who="m2", begun=16, ended=16, topic=T, partition=0, group="g", offset=8),
    ]


@allowed
def a_commit_while_somebody_asks(story: Story) -> None:
    story.more += [
        Commit(who="m1", begun=14, ended=16, topic=T, partition=0, group="g", offset=10, outcome=OK, generation=1),
        Committed(who="m2", begun=15, ended=17, topic=T, partition=0, group="g", offset=8),
    ]


@allowed
def somebody_asked_for_a_rewind(story: Story) -> None:
    story.more += [
        Rewind(who="admin", begun=14, ended=14.1, topic=T, partition=0, group="g"),
        Committed(who="observer", begun=15, ended=15, topic=T, partition=0, group="g", offset=0),
    ]


@breaks("C8")
def a_record_below_a_commit_was_delivered_to_nobody(story: Story) -> None:
    story.delivered = story.delivered[:6]


@breaks("C8")
def two_members_have_a_partition(story: Story) -> None:
    story.more.append(Assigned(who="m2", begun=12, ended=12, group="g", generation=1, partitions=[AT]))


# C14: what a client is told of offsets


@breaks("C14")
def the_lease_was_skipped(story: Story) -> None:
    """Somebody asked the new leader for the latest offset, and then a paused one that had not noticed."""
    story.more += [_latest("observer", 20, 10), _latest("observer", 21, 6)]


@allowed
def two_clients_ask_two_brokers(story: Story) -> None:
    story.more += [_latest("observer", 20, 10), _latest("somebody", 21, 6)]


@breaks("C14")
def the_log_start_goes_back(story: Story) -> None:
    first, then = (dataclasses.replace(_latest("observer", 20 + at, 5 - at), bound="earliest") for at in (0, 1))
    story.more += [first, then]


@breaks("C8", "C14")
def one_client_sees_a_commit_go_back(story: Story) -> None:
    story.more.append(Committed(who="observer", begun=14, ended=14, topic=T, partition=0, group="g", offset=5))


@allowed
def an_unclean_election_takes_the_end(story: Story) -> None:
    """Somebody asked for it, and it costs what it says."""
    story.more += [
        _latest("observer", 14, 10),
        Rewind(who="admin", begun=15, ended=15.1, topic=T, partition=0),
        _latest("observer", 16, 8),
    ]
    story.all_logs(values(*range(8)))


def _latest(who: str, at: float, offset: int) -> Bound:
    return Bound(who=who, begun=at, ended=at, topic=T, partition=0, bound="latest", offset=offset)
