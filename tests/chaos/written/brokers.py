"""C7, C9 to C11, C15."""

from __future__ import annotations

import dataclasses

from tests.chaos.history import (
    UNKNOWN,
    Complaint,
    Ephemeral,
    Failure,
    Fault,
    Health,
    Leftover,
    Measure,
    State,
)
from tests.chaos.written.stories import Story, T, allowed, breaks, sample, send

# C7: epochs, high watermarks, log ends


@breaks("C7")
def a_broker_says_an_older_epoch(story: Story) -> None:
    story.more += [sample(2, 1, 7.0), sample(2, 0, 8.0)]


@allowed
def another_broker_says_an_older_epoch(story: Story) -> None:
    story.more += [sample(2, 1, 7.0), sample(3, 0, 8.0)]


@breaks("C7")
def two_leaders_of_one_epoch(story: Story) -> None:
    story.more += [sample(2, 1, 7.0, leader=1), sample(3, 1, 7.0, leader=3)]


@allowed
def one_leader_after_the_other(story: Story) -> None:
    story.more += [sample(2, 1, 7.0, leader=1), sample(3, 2, 7.0, leader=3)]


@breaks("C7")
def a_leaders_high_watermark_goes_back(story: Story) -> None:
    story.more += [sample(1, 1, 10.0, hw=9), sample(1, 1, 11.0, hw=8)]


@allowed
def the_next_leader_has_heard_of_less(story: Story) -> None:
    story.more += [sample(1, 1, 10.0, hw=9), sample(2, 2, 11.0, leader=2, hw=8)]


@breaks("C7")
def a_new_leader_lacks_what_was_acknowledged(story: Story) -> None:
    story.more.append(sample(2, 2, 10.0, leader=2, end=9))


@allowed
def a_deposed_leader_lacks_what_came_later(story: Story) -> None:
    story.more.append(sample(2, 0, 10.0, leader=2, end=6))


@breaks("C7")
def something_is_acknowledged_with_too_few_in_sync(story: Story) -> None:
    story.more.append(Fault(name="one is left", begun=4.05, ended=4.5, commits_nothing=True))


@breaks("C7")
def a_high_watermark_moves_with_too_few_in_sync(story: Story) -> None:
    story.more.append(Fault(name="one is left", begun=20.0, ended=25.0, commits_nothing=True))
    story.more += [sample(1, 1, 21.0, hw=8), sample(1, 1, 22.0, hw=9)]


@allowed
def nothing_moves_with_too_few_in_sync(story: Story) -> None:
    story.more.append(Fault(name="one is left", begun=20.0, ended=25.0, commits_nothing=True))
    story.more += [sample(1, 1, 19.0, hw=7), sample(1, 1, 21.0, hw=8), sample(1, 1, 22.0, hw=8)]


# C9: liveness


@breaks("C9")
def a_reader_is_stuck(story: Story) -> None:
    story.shown = story.shown[:9]


@breaks("C9")
def producers_stand_still(story: Story) -> None:
    story.fault.acks_at_least = 3
    story.fault.begun, story.fault.ended = 3.5, 5.5
    story.more += _busy(("plain", "loose"), 3.6)


@allowed
def producers_go_on(story: Story) -> None:
    story.fault.acks_at_least = 2
    story.fault.begun, story.fault.ended = 3.5, 5.5
    story.more += _busy(("plain", "loose"), 3.6)


def _busy(producers: tuple[str, ...], begun: float) -> list[object]:
    """Three acknowledgements for each producer, in a topic that is gone in the end."""
    return [
        dataclasses.replace(send(number, who=who, begun=begun + number / 10), topic="gone")
        for who in producers
        for number in range(3)
    ]


@breaks("C9")
def a_client_sees_an_error(story: Story) -> None:
    story.fault.errors_at_most = 0
    story.more.append(Failure(who="reader", begun=4.5, ended=4.6, error="OffsetOutOfRange"))


@allowed
def a_client_sees_an_error_long_after(story: Story) -> None:
    story.fault.errors_at_most = 0
    story.more.append(Failure(who="reader", begun=60, ended=60, error="OffsetOutOfRange"))


@allowed
def a_client_sees_an_error_that_is_foreseen(story: Story) -> None:
    story.fault.errors_at_most = 0
    story.fault.errors_not_of = "maker"
    story.more.append(Failure(who="maker", begun=4.5, ended=4.6, error="InvalidReplicationFactor"))


@breaks("C9")
def an_isr_stays_short(story: Story) -> None:
    story.fault.isr_within_s = 15
    story.more += [dataclasses.replace(sample(1, 1, 10), isr=[1, 2]), sample(1, 1, 22)]


@allowed
def an_isr_is_full_again(story: Story) -> None:
    story.fault.isr_within_s = 15
    story.more += [dataclasses.replace(sample(1, 1, 10), isr=[1, 2]), sample(1, 1, 20)]


@breaks("C9")
def acknowledgements_stay_slow(story: Story) -> None:
    story.fault.p99_factor = 3
    for number in range(7, 10):
        story.sends[number] = send(number, lasting=0.4)


@allowed
def acknowledgements_are_fast_again(story: Story) -> None:
    story.fault.p99_factor = 3
    story.sends[5] = send(5, lasting=0.9)


@breaks("C9")
def something_takes_too_long(story: Story) -> None:
    story.more.append(Measure(name="an election", begun=4.0, ended=6.5, within_s=2.0))


@allowed
def something_is_fast_enough(story: Story) -> None:
    story.more.append(Measure(name="an election", begun=4.0, ended=5.5, within_s=2.0))


@breaks("C9")
def a_producer_does_not_resume(story: Story) -> None:
    story.fault.resumes_within_s = 2.0
    story.more += _busy(("plain",), 6.5) + _busy(("loose",), 8.5)


@allowed
def producers_resume(story: Story) -> None:
    story.fault.resumes_within_s = 2.0
    story.more += _busy(("plain", "loose"), 6.5)


# C10, C11: processes and the registry


@breaks("C10")
def a_broker_complains(story: Story) -> None:
    story.more.append(Complaint(broker=1, text="Task exception was never retrieved"))


@breaks("C10")
def a_file_is_left_behind(story: Story) -> None:
    story.more.append(Leftover(broker=1, path="rows-0/00000000000000000000.log.cleaned"))


@breaks("C10")
def files_stay_open(story: Story) -> None:
    story.more += [Health(broker=1, phase="before", open_files=100), Health(broker=1, phase="after", open_files=131)]


@breaks("C10")
def memory_is_kept(story: Story) -> None:
    story.more += [
        Health(broker=1, phase="before", resident_bytes=100 << 20),
        Health(broker=1, phase="after", resident_bytes=140 << 20),
    ]


@breaks("C10")
def a_loop_stands_still(story: Story) -> None:
    story.more.append(Health(broker=1, phase="after", lag_p999_ms=3.0, longest_lag_ms=101.0))


@allowed
def a_broker_grows_a_little(story: Story) -> None:
    story.more += [
        Health(broker=1, phase="before", open_files=100, resident_bytes=100 << 20, lag_p999_ms=3, longest_lag_ms=20),
        Health(broker=1, phase="after", open_files=119, resident_bytes=119 << 20, lag_p999_ms=19, longest_lag_ms=99),
    ]


@breaks("C11")
def an_ephemeral_node_has_no_owner(story: Story) -> None:
    story.more += [
        Ephemeral(path="/brokers/ids/1", owner="0x1", owner_lives=True),
        Ephemeral(path="/controller", owner="0x2", owner_lives=False),
    ]


@breaks("C11")
def a_leader_has_another_view(story: Story) -> None:
    story.more += [sample(1, 1, 20), State(topic=T, partition=0, leader=1, epoch=1, isr=[1, 2])]


@breaks("C11")
def elections_without_a_reason(story: Story) -> None:
    story.fault.elections = 1
    story.more += [sample(2, 0, 1), State(topic=T, partition=0, leader=1, epoch=2, isr=[1, 2, 3])]


@allowed
def an_election_with_a_reason(story: Story) -> None:
    story.fault.elections = 1
    story.more += [sample(1, 0, 1), sample(1, 1, 20), State(topic=T, partition=0, leader=1, epoch=1, isr=[3, 2, 1])]


# C15: gaps


@breaks("C15")
def a_partition_stands_still(story: Story) -> None:
    story.fault.longest_gap_s = 2.0
    story.sends[4] = send(4, lasting=2.3, begun=4.0)
    story.sends[5] = send(5, lasting=1.4, begun=5.0)
    story.sends[6] = send(6, lasting=0.5, begun=6.0)


@allowed
def a_partition_stands_still_long_before(story: Story) -> None:
    story.fault.longest_gap_s = 2.0
    story.fault.begun, story.fault.ended = 8.5, 8.6
    story.sends[4] = send(4, lasting=2.3, begun=4.0)
    story.sends[5] = send(5, lasting=1.4, begun=5.0)


@allowed
def a_partition_stands_still_from_the_end_on(story: Story) -> None:
    """That is the next fault's doing."""
    story.fault.longest_gap_s = 2.0
    story.fault.begun, story.fault.ended = 3.5, 5.0
    story.sends[5] = send(5, lasting=2.3, begun=5.0)
    story.sends[6] = send(6, lasting=1.4, begun=6.0)


@breaks("C15")
def a_partition_never_comes_back(story: Story) -> None:
    story.fault.longest_gap_s = 2.0
    story.sends.append(send(10, outcome=UNKNOWN, begun=9.2, lasting=30))
    story.fault.begun, story.fault.ended = 9.5, 20.0


@allowed
def a_partition_stands_still_that_no_bound_is_for(story: Story) -> None:
    story.fault.longest_gap_s = 2.0
    story.fault.partitions = (1, 2)
    story.sends[4] = send(4, lasting=2.3, begun=4.0)
    story.sends[5] = send(5, lasting=1.4, begun=5.0)
    story.sends[6] = send(6, lasting=0.5, begun=6.0)
