"""Rule R20 for groups: what a coordinator does with a request when its lease (R6) is over.

While the lease holds no other broker can coordinate, and requests are served at once. When the registry has not
answered for so long that it is over, a request waits until the leader of its group's partition has asked its followers
whether it still leads (``replication.leadership_confirmation``). Without an answer within five seconds the request gets
NOT_COORDINATOR.

A commit of offsets needs no question: it is a write of ``acks=all``. Only what it is refused for may be wrong
(:meth:`Coordination.said`).

Members whose requests wait cannot show that they live. So the groups' clock stands still when a question has waited for
longer than ``_UNNOTICED_S``, until one is answered with yes, or the lease holds again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.internal_topic import partition_for
from spark_kafkalite.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from spark_kafkalite.slices import Work

# A round takes a millisecond or two; groups need not know of these.
_UNNOTICED_S: Final = 0.5
_LOOKED_UP_AT_ONCE: Final = 256


class Coordination:
    """Whether this broker may answer for the groups whose partitions it leads."""

    def __init__(self, lease: RegistryLease, host: InternalTopicHost, clock: Clock) -> None:
        self._lease = lease
        self._host = host
        self._clock = clock
        self._stillness = Stillness()
        self._asking = 0

    @property
    def is_certain(self) -> bool:
        """Whether no follower needs to be asked."""
        return self._lease.holds(self._clock.monotonic_s())

    def partitions_of(self, groups: Iterable[str]) -> Work[Collection[int]]:
        """Return the partitions that groups belong to; none while there is no topic."""
        count = self._host.partition_count()
        partitions = set()
        for number, group in enumerate(groups if count else ()):
            if number % _LOOKED_UP_AT_ONCE == _LOOKED_UP_AT_ONCE - 1:
                yield None
            partitions.add(partition_for(group, count))
        return partitions

    async def confirm(self, partitions: Collection[int]) -> bool:
        """Return whether this broker still leads all of these partitions, as their followers confirm."""
        try:
            questions = [self._host.confirm(partition) for partition in partitions]
        except KafkaError:
            return False
        self._asking += 1
        self._stillness.asked(self._clock.monotonic_s())
        is_confirmed = False
        try:
            is_confirmed = all(await asyncio.gather(*questions))
        finally:
            self._asking -= 1
            if is_confirmed:
                self._stillness.answered(self._clock.monotonic_s(), is_asked_on=self._asking > 0)
        return is_confirmed

    def said(self, error: KafkaError) -> KafkaError:
        """Return the error that a client gets where one was found without a question."""
        if self.is_certain or isinstance(error, CoordinatorLoadInProgress):
            return error
        return NotCoordinator(f"this broker may not coordinate any more, and may be wrong in this: {error}")

    def stood_still_s(self) -> float:
        """Return for how many seconds the time of groups has stood still, up to now."""
        now_s = self._clock.monotonic_s()
        if self._lease.holds(now_s):
            self._stillness.answered(now_s, is_asked_on=False)
        return self._stillness.seconds(now_s)


class Stillness:
    """For how long a time has stood still. Pure; times are seconds of one clock that does not go back."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._asked_since_s: float | None = None

    def asked(self, now_s: float) -> None:
        """A question is asked."""
        if self._asked_since_s is None:
            self._asked_since_s = now_s

    def answered(self, now_s: float, *, is_asked_on: bool) -> None:
        """A question was answered with yes, or needs no answer any more; ``is_asked_on``: others wait."""
        self._before_s = self.seconds(now_s)
        self._asked_since_s = now_s if is_asked_on else None

    def seconds(self, now_s: float) -> float:
        """Return for how long the time has stood still, up to now."""
        if self._asked_since_s is None:
            return self._before_s
        return self._before_s + max(now_s - self._asked_since_s - _UNNOTICED_S, 0.0)
