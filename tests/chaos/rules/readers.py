"""C6, C8, C14: what readers were shown, in which order, and what was told of offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import OK, Assigned, At, Bound, Commit, Committed, Event, Poll, Rewind, Seek
from tests.chaos.rules.case import Case, Violation


def reading_order(case: Case) -> Iterator[Violation]:
    """C6: a reader goes forward record by record. After a seek it begins with the first record from there on; a member
    may begin anywhere when it gets partitions, and everybody whose position an unclean election has taken."""
    existing = {at: sorted(final.values) for at, final in case.final.items()}
    for client in case.clients.values():
        if client.kind not in ("poller", "member"):
            continue
        next_offsets: dict[At, tuple[int, Event]] = {}
        for event in case.reading(client):
            if isinstance(event, Assigned):
                next_offsets.clear()
            elif isinstance(event, Seek):
                next_offsets[event.at] = (event.offset, event)
            else:
                yield from _one_poll(case, event, next_offsets, existing.get(event.at, []))


def _one_poll(
    case: Case, poll: Poll, next_offsets: dict[At, tuple[int, Event]], existing: list[int]
) -> Iterator[Violation]:
    expected, before = next_offsets.get(poll.at, (None, poll))
    for offset, value in poll.records:
        if expected is not None and offset < expected:
            if not any(before.begun <= each.ended and each.begun <= poll.ended for each in case.unclean(poll.at)):
                shown = f"{poll.who} was shown offset {offset} ({value}) after offset {expected - 1}"
                yield Violation("C6", f"{case.name(poll.at)}: {shown}", (before, poll))
        elif expected is not None:
            skipped = existing[bisect_left(existing, expected) : bisect_left(existing, offset)]
            if skipped:
                yield Violation(
                    "C6",
                    f"{case.name(poll.at)}: {poll.who} was shown offset {offset} after offset {expected - 1}; "
                    f"offset {skipped[0]} lies between",
                    (before, poll),
                    len(skipped),
                )
        expected, before = offset + 1, poll
    if expected is not None:
        next_offsets[poll.at] = (expected, before)


def drained(case: Case) -> Iterator[Violation]:
    """C9: nothing is left that a reader who went to the end was not shown."""
    for client in case.clients.values():
        if not client.drains:
            continue
        seen: dict[At, set[int]] = defaultdict(set)
        began: dict[At, int] = {}
        for event in case.reading(client):
            if isinstance(event, Seek):
                began[event.at] = min(event.offset, began.get(event.at, event.offset))
            elif isinstance(event, Poll):
                seen[event.at].update(offset for offset, _ in event.records)
        for at, first in began.items():
            final = case.final.get(at)
            # A reader whose position an unclean election has taken is told so, and may end there.
            if final is None or case.unclean(at):
                continue
            committed = final.end if final.log.high_watermark < 0 else final.log.high_watermark
            unseen = sorted(offset for offset in final.values if first <= offset < committed and offset not in seen[at])
            if unseen:
                text = f"{case.name(at)}: {client.who} was never shown {len(unseen)} records, the first at {unseen[0]}"
                yield Violation("C9", text, (client,), len(unseen))


def groups(case: Case) -> Iterator[Violation]:
    """C8: commits never go back, nor does what is said of them; what lies below one was delivered to somebody; no two
    members have a partition in one generation."""
    for (group, at), commits in _acknowledged_commits(case).items():
        looks = [look for look in case.of(Committed) if (look.group, look.at) == (group, at)]
        rewinds = [rewind for rewind in case.of(Rewind) if (rewind.group, rewind.at) == (group, at)]
        yield from _commits_stay(case, commits, looks, rewinds)
        highest: Commit | Committed | None = max([*commits, *looks], key=lambda event: event.offset, default=None)
        if highest is not None and not rewinds:
            yield from _delivered(case, group, at, highest)
    owners: dict[tuple[str, int, At], Assigned] = {}
    # A group whose log was cut by an unclean election counts its generations anew.
    asked = case.of(Rewind)
    begun_anew = {rewind.group for rewind in asked} if any(not rewind.group for rewind in asked) else set()
    for assigned in case.of(Assigned):
        if assigned.group in begun_anew:
            continue
        for at in assigned.partitions:
            other = owners.setdefault((assigned.group, assigned.generation, at), assigned)
            if other.who != assigned.who:
                text = f"{case.name(at)}: {other.who} and {assigned.who} both have it in generation"
                yield Violation("C8", f"{text} {assigned.generation} of {assigned.group}", (other, assigned))


def _acknowledged_commits(case: Case) -> dict[tuple[str, At], list[Commit]]:
    found: dict[tuple[str, At], list[Commit]] = defaultdict(list)
    for commit in case.of(Commit):
        found[commit.group, commit.at].extend([commit] if commit.outcome == OK else [])
    for look in case.of(Committed):
        found[look.group, look.at].extend(())
    return found


def _commits_stay(
    case: Case, commits: list[Commit], looks: list[Committed], rewinds: list[Rewind]
) -> Iterator[Violation]:
    by_end = sorted(commits, key=lambda commit: commit.ended)
    done = 0
    highest: Commit | None = None
    later: list[Commit | Committed] = sorted([*commits, *looks], key=lambda event: event.begun)
    for event in later:
        while done < len(by_end) and by_end[done].ended < event.begun:
            if highest is None or by_end[done].offset >= highest.offset:
                highest = by_end[done]
            done += 1
        if highest is None or event.offset >= highest.offset:
            continue
        if any(highest.begun <= rewind.ended and rewind.begun <= event.ended for rewind in rewinds):
            continue
        did = "committed" if isinstance(event, Commit) else "was told"
        text = f"{case.name(event.at)}: after a commit of {highest.offset} was acknowledged, {event.who} {did}"
        yield Violation("C8", f"{text} {event.offset} in {event.group}", (highest, event))


def _delivered(case: Case, group: str, at: At, highest: Commit | Committed) -> Iterator[Violation]:
    members = {client.who for client in case.clients.values() if client.group == group}
    final = case.final.get(at)
    if final is None or not members:
        return
    shown = {offset for poll in case.polls.get(at, []) if poll.who in members for offset, _ in poll.records}
    missing = sorted(offset for offset in final.values if offset < highest.offset and offset not in shown)
    if missing:
        text = f"{case.name(at)}: {group} has committed {highest.offset}, and nobody in it was shown"
        yield Violation("C8", f"{text} {len(missing)} records below, the first at {missing[0]}", (highest,))


def told_offsets(case: Case) -> Iterator[Violation]:
    """C14: for one client neither the earliest nor the latest offset, nor a committed one, goes back."""
    last: dict[tuple[str, At, str], Bound | Committed] = {}
    for event in case.events:
        if not isinstance(event, Bound | Committed):
            continue
        kind = event.bound if isinstance(event, Bound) else f"committed by {event.group}"
        before = last.get((event.who, event.at, kind))
        last[event.who, event.at, kind] = event
        if before is None or event.offset >= before.offset:
            continue
        group = event.group if isinstance(event, Committed) else ""
        asked_for = [rewind for rewind in case.of(Rewind) if rewind.at == event.at and rewind.group == group]
        if group and any(rewind.begun <= event.ended for rewind in case.unclean(event.at)):
            # A commit outlives the records that it was for, and its group begins anew.
            continue
        if not any(before.begun <= rewind.ended and rewind.begun <= event.ended for rewind in asked_for):
            text = (
                f"{case.name(event.at)}: {event.who} was told that {before.offset} is {kind}, and then {event.offset}"
            )
            yield Violation("C14", text, (before, event))
