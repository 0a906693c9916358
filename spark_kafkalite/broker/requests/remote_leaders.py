"""Waits until partitions that other brokers lead are served there.

The registry names the leader; a broker leads once it has read that. A client that creates a topic wants to use it next.
So the answer waits until the leaders' own metadata name them as leaders. It does not wait for long: the topic exists
even if a leader does not answer (its process is frozen, for example), and clients try again.

Of a topic with thousands of partitions the answer waits for the first ones only. It does wait for these: librdkafka
does not soon ask again about a topic that it has seen without any leader ("No leaders found").
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_VERSION: Final = 12
# Leading begins within milliseconds of the registry's word.
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.2
# How long an answer waits for leaders that are registered.
LONGEST_WAIT_S: Final = 5.0
# Of each topic it waits for the partitions below this number.
_AWAITED_PARTITIONS: Final = 1000


def is_awaited(partition: int) -> bool:
    """Whether the answer to the creation of a topic waits until this partition is served."""
    return partition < _AWAITED_PARTITIONS


async def wait_until_served(
    broker_id: int, view: ClusterView, peers: Peers, topics: Mapping[str, bytes], timeout_s: float
) -> None:
    """Wait until other brokers serve what they are to lead of topics (names to ids), of each the first partitions, at
    most so long, and five seconds.

    ``broker_id`` is this broker, whose own partitions are not checked.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(timeout_s, LONGEST_WAIT_S)
    pause_s = _FIRST_PAUSE_S
    left = dict(topics)
    while left:
        by_leader: defaultdict[int, set[str]] = defaultdict(set)
        for name, topic_id in left.items():
            topic = view.state.topics.get(name)
            if topic is not None and topic.topic_id == topic_id:
                for number, state in topic.partitions.items():
                    if state.leader != broker_id and is_awaited(number):
                        by_leader[state.leader].add(name)
        waiting = await asyncio.gather(
            *(_not_led(view, peers, leader, names, left, until_s - loop.time()) for leader, names in by_leader.items())
        )
        unserved = set().union(*waiting)
        left = {name: topic_id for name, topic_id in left.items() if name in unserved}
        if not left or loop.time() + pause_s >= until_s:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _not_led(
    view: ClusterView, peers: Peers, leader: int, names: set[str], ids: Mapping[str, bytes], timeout_s: float
) -> set[str]:
    """Return the topics of which a broker does not serve all that it is to lead, by its own word."""
    broker = view.state.brokers.get(leader)
    if broker is None or timeout_s <= 0:
        return names
    asked = [MetadataRequestTopic(topic_id=ids[name], name=None) for name in sorted(names)]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    try:
        answer: MetadataResponse = await peers.ask(broker, request, _VERSION, timeout_s=timeout_s)
    except (KafkaliteError, TimeoutError):
        return names
    served = set()
    for topic in answer.topics:
        known = view.state.topics.get(topic.name or "")
        if known is None or topic.error_code:
            continue
        shown = {each.partition_index for each in topic.partitions if each.leader_id == leader and not each.error_code}
        wanted = {number for number, state in known.partitions.items() if state.leader == leader and is_awaited(number)}
        if wanted <= shown:
            served.add(topic.name)
    return names - served
