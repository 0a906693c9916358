"""What is there to judge, and C1, C12, C13."""

from __future__ import annotations

import dataclasses

from tests.chaos.history import (
    UNKNOWN,
    Client,
    Log,
    Poll,
)
from tests.chaos.written.stories import Story, T, allowed, breaks, send, values

# Is there everything to judge?


@breaks("H1")
def a_replica_is_missing(story: Story) -> None:
    del story.logs[3]


@breaks("H1", "C3", "C12")
def nobody_sent_anything(story: Story) -> None:
    story.sends = []
    story.all_logs([])


@breaks("H1")
def files_could_not_be_read(story: Story) -> None:
    broken = Log(topic="U", partition=0, broker=1, start=0, end=0, batches=[], problem="a batch fails its CRC")
    story.more.append(broken)


# C1: agreement


@breaks("C1", "C2", "C3", "C12")
def a_wrong_crc_was_accepted(story: Story) -> None:
    """What was sent is there in other bytes, on the leader and wherever it was replicated to."""
    wrong = [*values(0, 1, 2), "?7f3a", *values(*range(4, 10))]
    story.all_logs(wrong)
    story.delivered = [*enumerate(wrong)]


@breaks("C1")
def two_readers_see_two_values(story: Story) -> None:
    story.sends += [dataclasses.replace(send(number, outcome=UNKNOWN), topic="gone") for number in (10, 11)]
    other = Client(who="other", kind="poller")
    # Their partition is deleted before the end: there is no log to be held against.
    for who, value in (("reader", "p-10"), ("other", "p-11")):
        story.more.append(Poll(who=who, topic="gone", partition=0, records=[(10, value)]))
    story.more.append(other)


@breaks("C1", "C13")
def one_replica_has_other_bytes(story: Story) -> None:
    story.logs[3][1] = dataclasses.replace(story.logs[3][1], digest="other")


@allowed
def above_the_high_watermark_replicas_differ(story: Story) -> None:
    """A deposed leader has not been told yet that what nobody acknowledged is gone."""
    story.sends.append(send(10, outcome=UNKNOWN))
    story.log_of(3, values(*range(11)), {0: 0, 6: 1})
    story.high_watermarks = {1: 10, 2: 10, 3: 10}


@allowed
def what_acks_1_was_told_is_lost(story: Story) -> None:
    story.sends.append(send(0, 6, who="loose", begun=5.5))


# C12: what was shown stays


@breaks("C12")
def raised_before_truncated(story: Story) -> None:
    """A follower raised its high watermark over records that it was about to cut, was elected and showed one."""
    story.sends.append(send(10, outcome=UNKNOWN))
    story.more += [
        Client(who="other", kind="poller"),
        Poll(who="other", begun=30, ended=30, topic=T, partition=0, records=[(10, "p-10")]),
    ]


@breaks("C1", "C4", "C12")
def shown_and_then_elsewhere(story: Story) -> None:
    story.sends += [send(10, outcome=UNKNOWN), send(11, outcome=UNKNOWN)]
    story.all_logs(values(*range(10), 11, 10))
    story.shown += [(10, "p-11"), (11, "p-10")]
    story.more += [
        Client(who="other", kind="poller"),
        Poll(who="other", begun=30, ended=30, topic=T, partition=0, records=[(10, "p-10")]),
    ]
    # Their order is not the question here.
    story.sends[10:] = [dataclasses.replace(each, number=20 - each.number) for each in story.sends[10:]]


# C13: one leader an epoch


@breaks("C13")
def two_brokers_appended_under_one_epoch(story: Story) -> None:
    story.sends += [send(10, outcome=UNKNOWN), send(11, outcome=UNKNOWN)]
    story.log_of(2, values(*range(10), 10))
    story.log_of(3, values(*range(10), 11))
    story.shown.append((10, "p-10"))
    story.high_watermarks = dict.fromkeys(story.logs, 10)


@allowed
def two_brokers_appended_under_two_epochs(story: Story) -> None:
    story.sends += [send(10, outcome=UNKNOWN), send(11, outcome=UNKNOWN)]
    story.log_of(2, values(*range(10), 10), {0: 0, 6: 1, 10: 2})
    story.log_of(3, values(*range(10), 11), {0: 0, 6: 1, 10: 3})
    story.shown.append((10, "p-11"))
    story.high_watermarks = dict.fromkeys(story.logs, 10)


@breaks("C13")
def an_epoch_goes_back(story: Story) -> None:
    for broker in story.logs:
        story.log_of(broker, values(*range(10)), {0: 0, 4: 2, 6: 1})


@breaks("C13")
def the_same_end_after_another_middle(story: Story) -> None:
    """Above the high watermark, but a follower that has the leader's last batch has all before it."""
    story.sends += [send(number, outcome=UNKNOWN) for number in range(10, 14)]
    story.log_of(1, values(*range(14)), {0: 0, 6: 1, 10: 2, 12: 3})
    story.log_of(2, values(*range(14)), {0: 0, 6: 1, 12: 3})
    story.shown = [*enumerate(values(*range(14)))]
    story.high_watermarks = dict.fromkeys(story.logs, 10)
