"""C7, C9 to C11 and C15: what was seen of the brokers, and how long they took."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from tests.chaos.history import (
    OK,
    At,
    Client,
    Commit,
    Complaint,
    Ephemeral,
    Event,
    Failure,
    Fault,
    Health,
    Leftover,
    Measure,
    Sample,
    Send,
)
from tests.chaos.rules.case import Case, Violation

_SPARE_FILES = 10
_SPARE_BYTES = 16 << 20
_GROWTH = 1.2
_LAG_P999_MS = 20.0
_LONGEST_LAG_MS = 100.0


def epochs_and_bounds(case: Case) -> Iterator[Violation]:
    """C7: a broker's leader epochs and a leader's high watermark never go back, an epoch has one leader, and a leader
    has at least what has been acknowledged."""
    leaders: dict[tuple[At, int], Sample] = {}
    last: dict[tuple[At, int], Sample] = {}
    highest: dict[tuple[At, int, int], Sample] = {}
    for sample in sorted(case.of(Sample), key=lambda sample: sample.ended):
        before = last.get((sample.at, sample.broker))
        last[sample.at, sample.broker] = sample
        place = f"{case.name(sample.at)}: broker {sample.broker}"
        if before is not None and sample.epoch < before.epoch and sample.begun > before.ended:
            text = f"{place} says leader epoch {sample.epoch} after {before.epoch}"
            yield Violation("C7", text, (before, sample))
        if sample.leader >= 0:
            other = leaders.setdefault((sample.at, sample.epoch), sample)
            if other.leader != sample.leader:
                text = f"{case.name(sample.at)}: leader epoch {sample.epoch} has leaders {other.leader}"
                yield Violation("C7", f"{text} and {sample.leader}", (other, sample))
        if sample.leader == sample.broker and sample.high_watermark >= 0:
            most = highest.setdefault((sample.at, sample.broker, sample.epoch), sample)
            if sample.high_watermark < most.high_watermark and sample.begun > most.ended:
                text = f"{place} has high watermark {sample.high_watermark} after {most.high_watermark}"
                yield Violation("C7", f"{text} in leader epoch {sample.epoch}", (most, sample))
            if sample.high_watermark > most.high_watermark:
                highest[sample.at, sample.broker, sample.epoch] = sample
    yield from _leaders_have_everything(case)
    for fault in case.faults:
        if fault.commits_nothing:
            yield from _commits(case, fault)


def _commits(case: Case, fault: Fault) -> Iterator[Violation]:
    """Say what was committed while a fault lasted that leaves too few replicas for it."""
    for at, acks in case.durable_acks.items():
        early = [send for send in acks if fault.begun <= send.ended <= fault.ended]
        if early and case.is_busy(at):
            text = (
                f"{case.name(at)}: {len(early)} records were acknowledged during {_name(fault)}, with too few in sync"
            )
            yield Violation("C7", text, (fault, *early[:3]), len(early))
    first: dict[tuple[At, int], Sample] = {}
    for sample in case.of(Sample):
        if sample.leader != sample.broker or sample.high_watermark < 0:
            continue
        if fault.begun <= sample.begun and sample.ended <= fault.ended:
            before = first.setdefault((sample.at, sample.broker), sample)
            if sample.high_watermark > before.high_watermark:
                text = f"{case.name(sample.at)}: broker {sample.broker} moves its high watermark during {_name(fault)}"
                yield Violation("C7", f"{text}, with too few in sync", (fault, before, sample))


def _leaders_have_everything(case: Case) -> Iterator[Violation]:
    # The acknowledgements of each partition in time, and the highest offset up to each: nearly always that is enough,
    # and a long history has ten thousands of samples and hundreds of thousands of acknowledgements.
    in_time = {at: sorted(acks, key=lambda send: send.ended) for at, acks in case.durable_acks.items()}
    highest = {at: list(accumulate((send.offset for send in acks), max)) for at, acks in in_time.items()}
    for sample in case.of(Sample):
        final = case.final.get(sample.at)
        if sample.leader != sample.broker or sample.log_end < 0 or final is None or case.unclean(sample.at):
            continue
        acks = in_time.get(sample.at, [])
        count = bisect_left(acks, sample.begun, key=lambda send: send.ended)
        if not count or highest[sample.at][count - 1] < sample.log_end:
            continue
        # What was appended under a later epoch, a deposed leader need not have.
        missing = [
            send
            for send in acks[:count]
            if send.offset >= sample.log_end and final.epochs.get(send.offset, -1) <= sample.epoch
        ]
        if missing:
            text = f"{case.name(sample.at)}: the leader, broker {sample.broker}, ends at {sample.log_end}"
            yield Violation("C7", f"{text}; {missing[0].offset} had been acknowledged", (missing[0], sample))


def progress(case: Case) -> Iterator[Violation]:
    """C9: producers go on during a fault, clients see no more errors than it allows, and the ISRs are full again in
    time, as is what was measured."""
    producers = [client for client in case.clients.values() if client.kind == "producer"]
    for fault in case.faults:
        begun, ended = case.window(fault)
        if fault.acks_at_least is not None:
            for client in producers:
                acks = sum(
                    send.who == client.who and send.outcome == OK and begun <= send.ended <= ended
                    for send in case.of(Send)
                )
                if acks < fault.acks_at_least:
                    text = f"{client.who} got {acks} acknowledgements during {_name(fault)}"
                    yield Violation("C9", f"{text}; {fault.acks_at_least} is the least", (fault, client))
        if fault.errors_at_most is not None:
            errors = [
                event
                for event in _errors(case)
                if begun <= event.ended and event.begun <= ended and event.who != fault.errors_not_of
            ]
            if len(errors) > fault.errors_at_most:
                text = f"clients saw {len(errors)} errors during {_name(fault)}; {fault.errors_at_most} are allowed"
                yield Violation("C9", text, (fault, *errors[:3]), len(errors))
        if fault.isr_within_s is not None:
            yield from _full_isrs(case, fault, fault.isr_within_s)
        if fault.resumes_within_s is not None:
            yield from _resumed(case, fault, producers, fault.resumes_within_s)
        if fault.p99_factor is not None:
            yield from _latency(case, fault, fault.p99_factor)
    for measure in case.of(Measure):
        took_s = measure.ended - measure.begun
        if took_s > measure.within_s:
            yield Violation("C9", f"{measure.name} took {took_s:.2f} s; {measure.within_s} s are allowed", (measure,))


def _resumed(case: Case, fault: Fault, producers: list[Client], within_s: float) -> Iterator[Violation]:
    for client in producers:
        first = min(
            (
                send.ended
                for send in case.of(Send)
                if send.who == client.who and send.outcome == OK and send.ended >= fault.ended
            ),
            default=math.inf,
        )
        # Without a bound, too, it has to come.
        if first > fault.ended + within_s or math.isinf(first):
            text = f"{client.who} gets its next acknowledgement {first - fault.ended:.1f} s after {_name(fault)}"
            yield Violation("C9", f"{text}; {within_s} s are allowed", (fault, client))


def _errors(case: Case) -> list[Event]:
    sends = [send for send in case.of(Send) if send.outcome != OK]
    return [*sends, *(commit for commit in case.of(Commit) if commit.outcome != OK), *case.of(Failure)]


def _full_isrs(case: Case, fault: Fault, within_s: float) -> Iterator[Violation]:
    samples = case.by_partition(Sample)
    for topic in case.topics.values():
        for partition in range(topic.partitions if topic.is_kept and topic.is_busy else 0):
            at = (topic.topic, partition)
            after = [one for one in samples.get(at, []) if fault.ended <= one.begun and one.leader == one.broker]
            full = [one for one in after if len(one.isr) == topic.replicas]
            if not any(one.begun <= fault.ended + within_s for one in full):
                when = f"full {full[0].begun - fault.ended:.1f} s after it" if full else "not full"
                text = f"{case.name(at)}: the ISR is {when}, {within_s} s are allowed, after {_name(fault)}"
                yield Violation("C9", text, (fault, *after[-1:]))


def _latency(case: Case, fault: Fault, factor: float) -> Iterator[Violation]:
    first_begun = case.faults[0].begun
    healed = case.window(fault)[1]
    acks = [send for sends in case.durable_acks.values() for send in sends]
    before = sorted(send.ended - send.begun for send in acks if send.ended < first_begun)
    after = sorted(send.ended - send.begun for send in acks if send.begun > healed)
    if not before or not after:
        yield Violation("C9", f"no acknowledgements before and after {_name(fault)} to be compared", (fault,))
        return
    p99s = [times[math.ceil(len(times) * 0.99) - 1] for times in (before, after)]
    if p99s[1] > factor * p99s[0]:
        text = f"after {_name(fault)} 99 % of acknowledgements come within {p99s[1]:.3f} s, before within {p99s[0]:.3f}"
        yield Violation("C9", text, (fault,))


def health(case: Case) -> Iterator[Violation]:
    """C10: nothing broke inside a broker, and it has as many files and as much memory as before."""
    for complaint in case.of(Complaint):
        yield Violation("C10", f"broker {complaint.broker} says: {complaint.text}", (complaint,))
    for leftover in case.of(Leftover):
        yield Violation("C10", f"broker {leftover.broker} has left behind {leftover.path}", (leftover,))
    before: dict[int, Health] = {}
    for probe in case.of(Health):
        lags = ((probe.lag_p999_ms, _LAG_P999_MS, "99.9 % of"), (probe.longest_lag_ms, _LONGEST_LAG_MS, "all"))
        for lag_ms, most_ms, which in lags:
            if lag_ms > most_ms:
                text = f"broker {probe.broker}: {which} turns of its loop take up to {lag_ms} ms; {most_ms} are allowed"
                yield Violation("C10", text, (probe,))
        if probe.phase == "before":
            before[probe.broker] = probe
        elif (first := before.get(probe.broker)) is not None:
            for now, then, spare, what in (
                (probe.open_files, first.open_files, _SPARE_FILES, "open files"),
                (probe.resident_bytes, first.resident_bytes, _SPARE_BYTES, "bytes of memory"),
            ):
                if min(now, then) >= 0 and now > then * _GROWTH + spare:
                    yield Violation("C10", f"broker {probe.broker} has {now} {what}, before {then}", (first, probe))


def registry(case: Case) -> Iterator[Violation]:
    """C11: at rest the registry says what the leaders say, holds nobody's ephemeral nodes, and leader epochs are about
    as many as there were reasons."""
    for node in case.of(Ephemeral):
        if not node.owner_lives:
            yield Violation("C11", f"{node.path} is there, and its owner {node.owner} is not", (node,))
    last = case.last_samples()
    first: dict[At, Sample] = {}
    for sample in case.of(Sample):
        first.setdefault(sample.at, sample)
    allowed = [fault.elections for fault in case.faults]
    for at, state in case.states.items():
        view = last.get((at, state.leader))
        if view is not None and (view.leader, view.epoch, sorted(view.isr)) != (
            state.leader, state.epoch, sorted(state.isr),
        ):  # fmt: skip
            text = f"{case.name(at)}: the registry says leader {state.leader}, epoch {state.epoch}, ISR {state.isr}"
            seen = f"the leader {view.leader}, {view.epoch}, {view.isr}"
            yield Violation("C11", f"{text}; {seen}", (view, state))
        if at in first and allowed and None not in allowed:
            most = sum(count for count in allowed if count is not None)
            elections = state.epoch - first[at].epoch
            if elections > most:
                text = f"{case.name(at)}: {elections} elections; the faults are reasons for {most}"
                yield Violation("C11", text, (first[at], state))


def gaps(case: Case) -> Iterator[Violation]:
    """C15: while a fault and its effects last, a partition acknowledges again within the fault's bound."""
    for fault in case.faults:
        if fault.longest_gap_s is None:
            continue
        for at in bounded(case, fault):
            gap, begun = longest_gap(case, fault, at)
            if gap > fault.longest_gap_s or _never_comes_back(case, fault, at):
                text = f"{case.name(at)}: no acknowledgement for {gap:.2f} s from {begun:.2f} on, during {_name(fault)}"
                yield Violation("C15", f"{text}; {fault.longest_gap_s} s are allowed", (fault,))


def _never_comes_back(case: Case, fault: Fault, at: At) -> bool:
    """Whether nothing is acknowledged from a fault's beginning on, although something is sent until after its end."""
    sends = [send for send in case.sends.get(at, []) if case.is_durable(send) and send.ended > fault.begun]
    return any(send.ended > fault.ended for send in sends) and not any(send.outcome == OK for send in sends)


def bounded(case: Case, fault: Fault) -> list[At]:
    """Return the partitions that a fault's bound of gaps is for."""
    return [at for at in case.sends if case.is_busy(at) and (not fault.partitions or at[1] in fault.partitions)]


def longest_gap(case: Case, fault: Fault, at: At) -> tuple[float, float]:
    """Return the longest time without an acknowledgement that touches a fault's window, and when it began.

    Before the first acknowledgement and after the last one it counts as long as somebody was sending. What goes on
    after the window is another fault's.
    """
    begun, ended = case.window(fault)
    sends = [send for send in case.sends.get(at, []) if case.is_durable(send)]
    if not sends:
        return 0.0, begun
    acks = sorted(send.ended for send in sends if send.outcome == OK)
    until = max(send.ended for send in sends)
    times = [min(send.begun for send in sends), *acks, *([until] if not acks or until > acks[-1] else [])]
    first = max(bisect_left(times, begun) - 1, 0)
    pairs = zip(times[first:], times[first + 1 :], strict=False)
    return max(
        ((min(after, ended) - before, before) for before, after in pairs if before < ended), default=(0.0, begun)
    )


def _name(fault: Fault) -> str:
    return f"{fault.name} {fault.target}".strip()
