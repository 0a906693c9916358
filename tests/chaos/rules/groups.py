"""C9 for groups: what those who go on to the end are delivered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import Client
from tests.chaos.rules.case import Case, Violation


def delivered(case: Case) -> Iterator[Violation]:
    """C9: a group that reads to the end is shown every record, whichever of its members is."""
    groups: dict[str, list[Client]] = defaultdict(list)
    for client in case.clients.values():
        if client.kind == "member":
            groups[client.group].append(client)
    for group, members in groups.items():
        if not all(client.drains for client in members):
            continue
        names = {client.who for client in members}
        topics = {at[0] for at, polls in case.polls.items() if any(poll.who in names for poll in polls)}
        if not topics:
            yield Violation("C9", f"{group} was never shown anything", tuple(members))
        for at, final in case.final.items():
            if at[0] not in topics:
                continue
            shown = {offset for poll in case.polls.get(at, []) if poll.who in names for offset, _ in poll.records}
            committed = final.end if final.log.high_watermark < 0 else final.log.high_watermark
            unseen = sorted(offset for offset in final.values if offset < committed and offset not in shown)
            if unseen:
                text = f"{case.name(at)}: nobody in {group} was shown {len(unseen)} records, the first at {unseen[0]}"
                yield Violation("C9", text, tuple(members), len(unseen))
