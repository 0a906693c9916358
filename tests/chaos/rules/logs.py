"""C1, C12, C13 and the question whether there is anything to judge: what logs hold, and what was told of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.chaos.history import At, Event, Log, Send
from tests.chaos.rules.case import Case, Violation


def wholeness(case: Case) -> Iterator[Violation]:
    """What is to be judged is there: each kept partition's logs, of every replica, read to their ends."""
    if not case.of(Send):
        yield Violation("H1", "nobody has sent anything")
    for topic in case.topics.values():
        for partition in range(topic.partitions if topic.is_kept else 0):
            logs = case.logs.get((topic.topic, partition), [])
            if len({log.broker for log in logs}) < topic.replicas:
                brokers = sorted(log.broker for log in logs)
                yield Violation("H1", f"{topic.name}-{partition} has {topic.replicas} replicas; logs of {brokers} only")
    for at in case.sends:
        if at[0] not in case.topics:
            yield Violation("H1", f"records were sent to {case.name(at)}, which no topic event names")
    for log in case.of(Log):
        if log.problem:
            yield Violation("H1", f"{case.name(log.at)} on broker {log.broker}: {log.problem}")


def agreement(case: Case) -> Iterator[Violation]:
    """C1: one offset has one value for everybody, and below the least high watermark all replicas have the same bytes.

    What acks=1 was told may be lost and its offset given again, so it does not count.
    """
    for at in case.sends.keys() | case.polls.keys() | case.logs.keys():
        if not case.unclean(at):
            yield from _agreement_of_values(case, at)
        if not case.is_compacted(at):
            yield from _agreement_of_bytes(case, at)


def _agreement_of_values(case: Case, at: At) -> Iterator[Violation]:
    told: dict[int, dict[str, Event]] = {}
    logs = case.logs.get(at, [])
    common = _common_end(logs)
    for offset, value, event in (
        *((send.offset, send.value, send) for send in case.durable_acks.get(at, []) if send.offset >= 0),
        *((offset, value, poll) for poll in case.polls.get(at, []) for offset, value in poll.records),
        *(
            (offset, value, log)
            for log in logs
            for batch in log.batches
            for offset, value, _ in batch.records
            if offset < common
        ),
    ):
        events = told.setdefault(offset, {})
        if events and value not in events:
            first_value, first = next(iter(events.items()))
            text = f"{case.name(at)}: offset {offset} is {first_value} and {value}"
            yield Violation("C1", text, (first, event))
        events.setdefault(value, event)


def _agreement_of_bytes(case: Case, at: At) -> Iterator[Violation]:
    logs = case.logs.get(at, [])
    common = _common_end(logs)
    for one, other in combinations(logs, 2):
        first = max(one.start, other.start)
        batches = [
            [batch for batch in log.batches if first <= batch.base_offset and batch.last_offset < common]
            for log in (one, other)
        ]
        digests = [[(batch.base_offset, batch.digest) for batch in found] for found in batches]
        if digests[0] != digests[1]:
            differing = sorted(set(digests[0]) ^ set(digests[1]))
            yield Violation(
                "C1",
                f"{case.name(at)}: brokers {one.broker} and {other.broker} have other bytes at offset "
                f"{differing[0][0]}, below the high watermark {common}",
                (one, other),
            )


def shown_stays(case: Case) -> Iterator[Violation]:
    """C12: what a reader was shown is where it was shown, in the end."""
    for at, polls in case.polls.items():
        final = case.final.get(at)
        if final is None or case.unclean(at):
            continue
        is_compacted = case.is_compacted(at)
        for poll in polls:
            gone = [
                (offset, value)
                for offset, value in poll.records
                if not final.holds(offset, value, _key_of(case, value), is_compacted=is_compacted)
            ]
            if gone:
                offset, value = gone[0]
                yield Violation(
                    "C12",
                    f"{case.name(at)}: {poll.who} was shown {value} at offset {offset}; in the end there is "
                    f"{final.values.get(offset, 'nothing')}, and {value} is at {final.offsets.get(value, 'no offset')}",
                    (poll,),
                    len(gone),
                )


def one_leader_an_epoch(case: Case) -> Iterator[Violation]:
    """C13: leader epochs never go back in a log, and what two logs have of one epoch at one offset is the same, as is
    all that lies before it. It holds above the high watermark too."""
    for at, logs in case.logs.items():
        for log in logs:
            for before, after in pairwise(log.batches):
                if after.epoch < before.epoch:
                    yield Violation(
                        "C13",
                        f"{case.name(at)} on broker {log.broker}: the batch at {after.base_offset} has leader epoch "
                        f"{after.epoch}, the one before {before.epoch}",
                        (log,),
                    )
        if case.is_compacted(at):
            continue
        for one, other in combinations(logs, 2):
            yield from _matching(case, one, other)


def _matching(case: Case, one: Log, other: Log) -> Iterator[Violation]:
    digests = [{(batch.base_offset, batch.epoch): batch.digest for batch in log.batches} for log in (one, other)]
    shared = digests[0].keys() & digests[1].keys()
    different = sorted(place for place in shared if digests[0][place] != digests[1][place])
    if different:
        offset, epoch = different[0]
        text = f"brokers {one.broker} and {other.broker} both have a batch of leader epoch {epoch} at {offset}"
        yield Violation("C13", f"{case.name(one.at)}: {text}, with other bytes", (one, other), len(different))
    elif shared:
        last = max(shared)
        first = max(one.start, other.start)
        before = [{place for place in found if first <= place[0] < last[0]} for found in digests]
        if before[0] != before[1]:
            offset, epoch = min(before[0] ^ before[1])
            text = f"brokers {one.broker} and {other.broker} share the batch at {last[0]} of leader epoch {last[1]}"
            yield Violation(
                "C13", f"{case.name(one.at)}: {text}, but not what is at {offset} of epoch {epoch}", (one, other)
            )


def _common_end(logs: list[Log]) -> int:
    """Return the least high watermark: below it every replica has everything."""
    return min((log.end if log.high_watermark < 0 else log.high_watermark for log in logs), default=0)


def _key_of(case: Case, value: str) -> str | None:
    sends = case.sends_of_value.get(value)
    return sends[0].key if sends else None
