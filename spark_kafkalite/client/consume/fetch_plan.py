"""What a consumer fetches next from one broker: pure rules over the states of its partitions.

- A partition is fetched while less than two fetches' worth of it waits to be read.
- All that waits or is asked for stays within ``queued.max.bytes``, but for single batches that are larger.
- One fetch asks for no more than the broker's share of that, since it may wait for long: the idle brokers' fetches
  would else take all the room, and the one that has records would never be asked.
- With ``fair`` each partition has a share of these bytes, and one without a reader must not use up the room of others:
  when there is none left, one partition of which nothing waits may have one batch.
- The broker fills an answer in the order of the request: each partition comes first in turn.
- A fetch that leaves out partitions whose buffers are full must not be parked for long by the idle others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from spark_kafkalite.client.config import ConsumerConfig
from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.network.metadata import ClusterSnapshot

SHORT_WAIT_MS: Final = 20
# Who has nothing to fetch looks again at least this often.
IDLE_S: Final = 1.0


class Want(NamedTuple):
    """One partition to be fetched, and its state's ``generation`` at this moment."""

    state: TopicPartitionState
    generation: int
    position: FetchFrom

    @property
    def is_current(self) -> bool:
        """Whether the partition has not been moved since, nor failed before this; the read-ahead's lock is held."""
        return self.state.generation == self.generation and self.state.fetch_offset == self.position.offset


class FetchPlan(NamedTuple):
    """The next fetch from a broker; without ``wants`` there is none until ``look_again_s`` seconds have passed."""

    wants: list[Want]
    limits: FetchLimits
    look_again_s: float


def plan_fetch(
    states: Collection[TopicPartitionState],
    snapshot: ClusterSnapshot,
    node_id: int,
    *,
    requested_bytes: int,
    turn: int,
    now_s: float,
    config: ConsumerConfig,
    fair: bool,
) -> FetchPlan | None:
    """Return what to fetch from a broker, None when it leads none of the partitions or is not live.

    ``requested_bytes`` are those of fetches to all brokers that are not answered yet; ``turn`` grows with every plan
    that is carried out. ``limits.max_bytes`` is what this fetch adds to ``requested_bytes``.
    """
    most = config.max_partition_fetch_bytes
    if fair:
        most = max(1, min(most, config.queued_max_bytes // (2 * max(1, len(states)))))
    enough = 2 * max(1, most)
    wants: list[Want] = []
    look_again_s = IDLE_S
    is_cut = False
    leaders: set[int] = set()
    held_bytes = requested_bytes
    for state in states:
        held_bytes += state.buffered_bytes
        info = snapshot.partition(state.topic_partition)
        if info is None:
            continue
        leaders.add(info.leader)
        if info.leader != node_id:
            continue
        if state.position is None or state.paused or state.error:
            continue
        if state.retry_at_s > now_s:
            look_again_s = min(look_again_s, state.retry_at_s - now_s)
            is_cut = True
        elif state.buffered_bytes >= enough:
            is_cut = True
        else:
            position = FetchFrom(state.topic_partition, state.fetch_offset, info.leader_epoch, most, state.fetch_epoch)
            wants.append(Want(state, state.generation, position))
    if node_id not in leaders or node_id not in snapshot.nodes:
        return None
    share = max(1, config.queued_max_bytes // len(leaders))
    room = min(config.fetch_max_bytes, share, config.queued_max_bytes - held_bytes)
    if room <= 0 and fair:
        # One batch, for somebody whose readers wait.
        wants, room, is_cut = [want for want in wants if not want.state.buffered][:1], 1, True
    if room <= 0:
        wants = []
    if wants:
        first = turn % len(wants)
        wants = wants[first:] + wants[:first]
    wait_ms = min(config.fetch_max_wait_ms, SHORT_WAIT_MS) if is_cut else config.fetch_max_wait_ms
    limits = FetchLimits(config.fetch_min_bytes, room, wait_ms, config.isolation, config.client_rack)
    return FetchPlan(wants, limits, look_again_s)
