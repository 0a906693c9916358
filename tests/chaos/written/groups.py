"""C9: groups that read to the end."""

from __future__ import annotations

from tests.chaos.history import Client, Poll
from tests.chaos.written.stories import Story, T, allowed, breaks


def _another_group(story: Story, records: list[tuple[int, str]]) -> None:
    """Add a group of two that goes on to the end, of which one member is shown these records, the other none."""
    story.more += [
        Client(who="d1", kind="member", group="drained", drains=True),
        Client(who="d2", kind="member", group="drained", drains=True),
        Poll(who="d2", begun=11, ended=11, topic=T, partition=0, records=records),
    ]


@allowed
def a_group_is_shown_everything(story: Story) -> None:
    _another_group(story, story.shown)


@breaks("C9")
def a_group_is_not_shown_the_end(story: Story) -> None:
    _another_group(story, story.shown[:-1])


@breaks("C9")
def a_group_is_shown_nothing(story: Story) -> None:
    _another_group(story, [])
    story.more.pop()
