"""C2 to C5."""

from __future__ import annotations

import dataclasses

from tests.chaos.history import (
    FAIL,
    UNKNOWN,
    Rewind,
    State,
)
from tests.chaos.written.stories import Story, T, allowed, batches_of, breaks, send, values

# C2: durability


@breaks("C2", "C12")
def acknowledged_before_replication(story: Story) -> None:
    """The leader acknowledged p-8 and p-9 alone, showed them, and died; the next one never had them."""
    story.all_logs(values(*range(8)))


@breaks("C1", "C2", "C5", "C12")
def truncated_to_the_high_watermark(story: Story) -> None:
    """Two followers cut p-4 to p-9, whose high watermark they had not heard of; one of them led, and went on at 4."""
    story.sends.append(send(10, 4))
    story.all_logs(values(0, 1, 2, 3, 10))


@breaks("C2", "C12")
def an_fsync_was_dropped(story: Story) -> None:
    """The power took the end of the log of the only replica that had been in sync; nothing came after it."""
    story.all_logs(values(*range(6)))
    story.delivered = story.delivered[:6]


@breaks("C1", "C2", "C5")
def a_bounced_replica_was_trusted(story: Story) -> None:
    """It came back without its tail, was elected, and gave the offsets to another's records; nobody had read them."""
    story.sends.append(send(0, 8, who="plain", begun=20))
    story.all_logs([*values(*range(8)), "plain-0"])
    story.shown = [*enumerate(values(*range(8))), (8, "plain-0")]
    story.delivered = story.delivered[:8]


@breaks("C1", "C2")
def an_old_epochs_wait_was_answered(story: Story) -> None:
    """Acknowledged at an offset that the next leader's high watermark passed, with other records."""
    story.sends.append(send(10, 7, begun=6.5, lasting=2))


@breaks("C2", "C9")
def one_in_sync_replica_misses_the_end(story: Story) -> None:
    story.log_of(3, values(*range(8)))
    story.more.append(State(topic=T, partition=0, leader=1, epoch=1, isr=[1, 2, 3]))
    story.shown = story.shown[:9]


@allowed
def one_that_is_not_in_sync_misses_the_end(story: Story) -> None:
    story.log_of(3, values(*range(8)))
    story.more.append(State(topic=T, partition=0, leader=1, epoch=1, isr=[1, 2]))


@breaks("C2")
def an_unclean_election_takes_from_the_middle(story: Story) -> None:
    story.sends.append(send(0, who="plain", outcome=UNKNOWN))
    story.all_logs([*values(*range(4)), "plain-0", *values(*range(5, 10))])
    story.more.append(Rewind(who="admin", begun=15, ended=15.1, topic=T, partition=0))


@breaks("C2")
def something_is_lost_long_after_an_unclean_election(story: Story) -> None:
    story.all_logs(values(*range(9)))
    story.more.append(Rewind(who="admin", begun=1.5, ended=1.8, topic=T, partition=0))


@breaks("C2")
def acknowledged_at_the_wrong_offset(story: Story) -> None:
    story.sends[9] = send(9, 10)


@allowed
def acknowledged_without_an_offset(story: Story) -> None:
    """As a repeated batch may be, that the broker remembers no more than having."""
    story.sends[9] = send(9, -1)


@breaks("C2")
def acknowledged_without_an_offset_and_lost(story: Story) -> None:
    story.sends.append(send(10, -1))


@allowed
def old_records_were_removed(story: Story) -> None:
    for broker in story.logs:
        story.logs[broker] = story.logs[broker][2:]
        story.starts[broker] = 4


@allowed
def compaction_kept_the_last_of_each_key(story: Story) -> None:
    story.is_compacted = True
    keys = {f"p-{number}": f"k{number % 3}" for number in range(10)}
    story.sends = [send(number, key=keys[f"p-{number}"]) for number in range(10)]
    for broker, removed in ((1, {0, 1, 2, 3}), (2, {0, 4}), (3, set())):
        batches = batches_of(values(*range(10)), {0: 0, 6: 1}, keys)
        story.logs[broker] = [
            dataclasses.replace(batch, digest=f"cleaned-{broker}", records=records)
            for batch in batches
            if (records := [record for record in batch.records if record[0] not in removed])
        ]


@breaks("C2", "C12")
def compaction_took_the_last_of_a_key(story: Story) -> None:
    compaction_kept_the_last_of_each_key(story)
    for broker in story.logs:
        story.logs[broker] = story.logs[broker][:-1]
    story.delivered = story.delivered[:8]


# C3: no phantoms


@breaks("C3", "C9")
def a_value_that_nobody_sent(story: Story) -> None:
    story.all_logs([*values(*range(10)), "?dead"])


@breaks("C3")
def a_refused_value_is_there(story: Story) -> None:
    story.sends[9] = send(9, outcome=FAIL)


@allowed
def an_unanswered_value_is_there(story: Story) -> None:
    story.sends[9] = send(9, outcome=UNKNOWN)


@allowed
def an_unanswered_value_is_not_there(story: Story) -> None:
    story.sends.append(send(10, outcome=UNKNOWN))


@breaks("C3", "C9")
def a_value_in_another_partition(story: Story) -> None:
    stray = dataclasses.replace(send(10, outcome=UNKNOWN), topic="gone")
    story.sends.append(stray)
    story.all_logs(values(*range(11)))


# C4: duplicates


@breaks("C4", "C9")
def an_idempotent_producers_record_twice(story: Story) -> None:
    story.all_logs([*values(*range(10)), "p-9"])


@breaks("C4", "C9")
def an_unacknowledged_one_twice(story: Story) -> None:
    story.sends[9] = send(9, outcome=UNKNOWN)
    story.all_logs([*values(*range(10)), "p-9"])


def _twice_by(story: Story, first: str, second: str) -> None:
    story.may_renew_itself = True
    story.all_logs([*values(*range(10)), "p-9"])
    story.shown = story.delivered = [*enumerate([*values(*range(10)), "p-9"])]
    for batches in story.logs.values():
        for batch in batches:
            batch.writer = second if batch.base_offset == 10 else first


@allowed
def written_again_under_a_new_producer_epoch(story: Story) -> None:
    _twice_by(story, "7/0", "7/1")


@breaks("C4")
def written_again_under_the_same_producer_epoch(story: Story) -> None:
    """That is for the broker to see."""
    _twice_by(story, "7/0", "7/0")


@allowed
def an_idempotent_producers_record_twice_after_an_unclean_election(story: Story) -> None:
    story.all_logs([*values(*range(10)), "p-9"])
    story.more.append(Rewind(who="admin", begun=15, ended=15.1, topic=T, partition=0))


@allowed
def a_plain_producers_record_twice(story: Story) -> None:
    story.sends += [send(0, 11, who="plain", begun=10)]
    story.all_logs([*values(*range(10)), "plain-0", "plain-0"])
    story.shown += [(10, "plain-0"), (11, "plain-0")]


# C5: order


@breaks("C5")
def an_idempotent_producers_records_reordered(story: Story) -> None:
    story.sends[8:] = [send(8, outcome=UNKNOWN), send(9, outcome=UNKNOWN)]
    mixed = values(*range(8), 9, 8)
    story.all_logs(mixed)
    story.shown = story.delivered = [*enumerate(mixed)]


@breaks("C5")
def a_lower_offset_than_one_that_was_acknowledged_before(story: Story) -> None:
    """Two leaders at once: the second record was sent after the first was acknowledged."""
    story.sends += [send(0, 11, who="plain", begun=20), send(1, 10, who="plain", begun=21)]
    story.all_logs([*values(*range(10)), "plain-1", "plain-0"])
    story.shown += [(10, "plain-1"), (11, "plain-0")]


@allowed
def a_plain_producers_repeats_change_places(story: Story) -> None:
    """Both were in flight at once, and the first had to be sent again."""
    story.sends += [send(0, 11, who="plain", begun=20, lasting=2), send(1, 10, who="plain", begun=21)]
    story.all_logs([*values(*range(10)), "plain-1", "plain-0"])
    story.shown += [(10, "plain-1"), (11, "plain-0")]


@allowed
def an_idempotent_producer_gives_one_up(story: Story) -> None:
    story.sends[4] = send(4, outcome=UNKNOWN)
    story.sends[5:] = [send(number, number - 1) for number in range(5, 10)]
    rest = values(0, 1, 2, 3, *range(5, 10))
    story.all_logs(rest)
    story.shown = story.delivered = [*enumerate(rest)]
