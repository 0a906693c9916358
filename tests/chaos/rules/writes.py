"""C2 to C5: what becomes of records that were sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import FAIL, OK, At, Event, Rewind, Send
from tests.chaos.rules.case import Case, FinalLog, Violation


def durability(case: Case) -> Iterator[Violation]:
    """C2: what was acknowledged with acks=all is in every in-sync replica's log, at the offset that was told. Of
    what was acknowledged before it an unclean election may take the end."""
    for at, acks in case.durable_acks.items():
        if rewinds := case.unclean(at):
            yield from _kept_by_unclean_elections(case, at, acks, rewinds)
            continue
        for log in case.in_sync_logs(at):
            final = FinalLog(log)
            is_compacted = case.is_compacted(at)
            lost = [send for send in acks if not _is_kept(final, send, is_compacted)]
            if lost:
                first = min(lost, key=lambda send: send.offset)
                yield Violation(
                    "C2",
                    f"{case.name(at)}: broker {log.broker} has lost {len(lost)} of {len(acks)} acknowledged records, "
                    f"the first {first.value} at offset {first.offset}: the log has "
                    f"{final.values.get(first.offset, 'nothing')} there, and {first.value} at "
                    f"{final.offsets.get(first.value, 'no offset')}; it goes from {final.start} to {final.end}",
                    tuple(lost[:3]),
                    len(lost),
                )


def _kept_by_unclean_elections(case: Case, at: At, acks: list[Send], rewinds: list[Rewind]) -> Iterator[Violation]:
    final = case.final.get(at)
    if final is None:
        return
    begun, ended = min(each.begun for each in rewinds), max(each.ended for each in rewinds)
    told = [send for send in acks if send.offset >= 0]
    lost: Send | None = None
    for send in sorted((send for send in told if send.ended < begun), key=lambda send: send.offset):
        if not _is_kept(final, send, False):
            lost = lost or send
        elif lost is not None:
            text = f"{case.name(at)}: an unclean election took {lost.value} at offset {lost.offset}"
            yield Violation("C2", f"{text}, and not {send.value} at offset {send.offset}", (lost, send))
            break
    after = [send for send in told if send.begun > ended and not _is_kept(final, send, case.is_compacted(at))]
    if after:
        text = f"{case.name(at)}: {len(after)} records are gone that were acknowledged after an unclean election"
        yield Violation("C2", text, tuple(after[:3]), len(after))


def _is_kept(final: FinalLog, send: Send, is_compacted: bool) -> bool:
    if send.offset >= 0:
        return final.holds(send.offset, send.value, send.key, is_compacted=is_compacted)
    return send.value in final.offsets or final.start > 0 or is_compacted


def no_phantoms(case: Case) -> Iterator[Violation]:
    """C3: every value that is in a log or was shown has been sent to that partition, and not certainly refused."""
    found: dict[tuple[At, str], tuple[int, Event]] = {}
    for at, logs in case.logs.items():
        for log in logs:
            for batch in log.batches:
                for offset, value, _ in batch.records:
                    found.setdefault((at, value), (offset, log))
    for at, polls in case.polls.items():
        for poll in polls:
            for offset, value in poll.records:
                found.setdefault((at, value), (offset, poll))
    for (at, value), (offset, event) in found.items():
        if at[0] not in case.topics:
            continue  # nobody's business here, such as the topic of another history
        sends = [send for send in case.sends_of_value.get(value, ()) if send.at == at]
        if not sends:
            yield Violation("C3", f"{case.name(at)}: {value} at offset {offset} was never sent there", (event,))
        elif all(send.outcome == FAIL for send in sends):
            text = f"{value} at offset {offset} is there, although its producer was told {sends[0].error or 'no'}"
            yield Violation("C3", f"{case.name(at)}: {text}", (sends[0], event))


def no_duplicates(case: Case) -> Iterator[Violation]:
    """C4: no value of an idempotent producer is at two offsets, acknowledged or not. With the end of a log an unclean
    election may take what the broker knew of its producers."""
    for at, value, offsets, send in duplicates(case):
        client = case.clients.get(send.who)
        if client is None or not client.idempotent or case.unclean(at):
            continue
        final = case.final.get(at)
        writers = {offset: final.writers.get(offset, "") if final is not None else "" for offset in sorted(offsets)}
        if client.may_renew_itself and all(writers.values()) and len(set(writers.values())) == len(writers):
            continue
        places = ", ".join(f"{offset} ({writer})" if writer else f"{offset}" for offset, writer in writers.items())
        yield Violation(
            "C4", f"{case.name(at)}: {value} of the idempotent producer {send.who} is at offsets {places}", (send,)
        )


def duplicates(case: Case) -> Iterator[tuple[At, str, set[int], Send]]:
    """Give each value that is, or was shown, at more than one offset, and its first send."""
    places: dict[tuple[At, str], set[int]] = defaultdict(set)
    for at, final in case.final.items():
        for value, offsets in final.offsets.items():
            places[at, value].update(offsets)
    for at, polls in case.polls.items():
        for poll in polls:
            for offset, value in poll.records:
                places[at, value].add(offset)
    for (at, value), found in places.items():
        if len(found) > 1 and value in case.sends_of_value:
            yield at, value, found, case.sends_of_value[value][0]


def order(case: Case) -> Iterator[Violation]:
    """C5: an idempotent producer's records lie in the order in which it sent them; and whoever sends after another's
    acknowledgement gets a higher offset."""
    for at, sends in case.sends.items():
        final = case.final.get(at)
        for who, own in _by_sender(sends).items():
            client = case.clients.get(who)
            if final is None or client is None or not client.idempotent or case.unclean(at):
                continue
            last: tuple[int, Send] | None = None
            for send in sorted(own, key=lambda send: send.number):
                offsets = final.offsets.get(send.value)
                if not offsets:
                    continue
                if last is not None and offsets[0] < last[0]:
                    text = f"{case.name(at)}: {who} sent {last[1].value} (at offset {last[0]}) before {send.value}"
                    yield Violation("C5", f"{text}, which is at offset {offsets[0]}", (last[1], send))
                last = (offsets[0], send)
        if not case.unclean(at):
            yield from _real_time_order(case, at)


def _real_time_order(case: Case, at: At) -> Iterator[Violation]:
    acks = [send for send in case.durable_acks.get(at, []) if send.offset >= 0]
    by_end = sorted(acks, key=lambda send: send.ended)
    done = 0
    highest: Send | None = None
    for send in sorted(acks, key=lambda send: send.begun):
        while done < len(by_end) and by_end[done].ended < send.begun:
            if highest is None or by_end[done].offset > highest.offset:
                highest = by_end[done]
            done += 1
        if highest is not None and send.offset <= highest.offset:
            text = f"{send.value} was sent after {highest.value} was acknowledged at offset {highest.offset}"
            yield Violation("C5", f"{case.name(at)}: {text}, and got offset {send.offset}", (highest, send))


def _by_sender(sends: list[Send]) -> dict[str, list[Send]]:
    found: dict[str, list[Send]] = defaultdict(list)
    for send in sends:
        found[send.who].append(send)
    return found


def tally(case: Case) -> dict[str, int]:
    """Return the figures of a history that has been judged."""
    sends = [send for sent in case.sends.values() for send in sent]
    return {
        "sent": len(sends),
        "acknowledged": sum(send.outcome == OK for send in sends),
        "refused": sum(send.outcome == FAIL for send in sends),
        "unknown": sum(send.outcome not in (OK, FAIL) for send in sends),
        "shown": sum(len(poll.records) for polls in case.polls.values() for poll in polls),
        "kept": sum(len(final.values) for final in case.final.values()),
        "logs": sum(len(logs) for logs in case.logs.values()),
        "lost by unclean elections": sum(
            send.outcome == OK and case.is_durable(send) and not _is_kept(case.final[at], send, case.is_compacted(at))
            for at, sent in case.sends.items()
            if case.unclean(at) and at in case.final
            for send in sent
        ),
        "duplicates of plain producers": sum(
            1
            for _, _, _, send in duplicates(case)
            if not (send.who in case.clients and case.clients[send.who].idempotent)
        ),
    }
