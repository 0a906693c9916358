"""Unclean elections wait for what replicas report of their logs, and everything else goes on; over a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    KafkaliteError,
    RequestTimedOut,
)
from spark_kafkalite.model import BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.cluster.state_nodes import FencedNodes, StateChange
from spark_kafkalite.registry.controller.controller import Chosen, TopicSpec
from spark_kafkalite.registry.report_nodes import EMPTY, OFFLINE, LogReport, encode_log, encode_node, report_path
from spark_kafkalite.registry.store import NodeExists, answer
from tests.unit.registry.controller.test_several_brokers import TIMEOUT_S, Broker, Cluster, a_cluster
from tests.unit.registry.virtual_time import run

T0 = TopicPartition("t", 0)


async def lose_state(cluster: Cluster, *numbers: int) -> list[Broker]:
    """Have the state of t-0 deleted by hand, and made again; return the brokers."""
    first = cluster.brokers[0]
    await first.controller.create_topics([TopicSpec("t", assignment={0: list(numbers)})])
    await first.until_led(numbers[0])
    await answer(first.store.delete(znodes.state_path("t", 0)))
    for broker in cluster.brokers:
        await broker.until(lambda state: state.topics["t"].partitions[0].names_nobody)
    return list(cluster.brokers)


async def lose_power(cluster: Cluster, *numbers: int) -> list[Broker]:
    """Have all brokers end, and other runs of them come that can prove nothing; return these."""
    first = cluster.brokers[0]
    await first.controller.create_topics([TopicSpec("t", assignment={0: list(numbers)})])
    await first.until_led(numbers[0])
    before = list(cluster.brokers)
    for broker in before:
        broker.expire()
        await broker.end()
    cluster.brokers = []
    after = await cluster.join(*numbers)
    for broker in after:
        await broker.until_led(-1)
    return after


async def report(
    broker: Broker,
    end_offset: int,
    *,
    last_epoch: int = 1,
    older: int = 0,
    run_of: int = 0,
    gone: str = "",
    high_watermark: int = 0,
    leader_epoch: int = -1,
    replaces: bool = False,
) -> None:
    """Have a broker report its log of t-0; ``older``: for a state that many versions before."""
    _, stat = await answer(broker.store.get(znodes.state_path("t", 0)))
    epochs = ((last_epoch, 0),) if last_epoch >= 0 else ()
    log = LogReport(
        stat.czxid,
        stat.version - older,
        last_epoch,
        end_offset,
        epochs,
        (),
        gone,
        high_watermark,
        leader_epoch=max(last_epoch, leader_epoch),
    )
    number = broker.registration.broker_id
    incarnation = run_of or broker.registration.incarnation
    data = encode_node(number, Incarnation(incarnation), [encode_log(T0, log)])
    if replaces:
        await answer(broker.store.set(report_path(number, 0), data))
        return
    with contextlib.suppress(NodeExists):
        await answer(broker.store.create(znodes.LOG_REPORTS))
    await answer(broker.store.create(report_path(number, 0), data, ephemeral=True))


def controller_of(brokers: list[Broker]) -> Broker:
    return next(broker for broker in brokers if broker.controller.is_active)


def test_it_waits_for_all_live_replicas_and_takes_the_best_while_others_are_elected(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 1, 2, 3)
            first, second, third = brokers
            controller = controller_of(brokers).controller
            await report(first, 500)
            election = asyncio.ensure_future(controller.elect_leaders([T0], unclean=True))
            # Topics are made, and leaders elected, meanwhile.
            await controller.create_topics([TopicSpec("u", assignment={0: [3, 2]})])
            await first.until_led(3, "u")
            await report(third, 1500)
            await first.watcher.caught_up(TIMEOUT_S)
            assert not election.done()
            await report(second, 1400, last_epoch=2)
            assert await election == {T0: None}
            # The later epoch, though its log is shorter than that of broker 3.
            after = await first.until_led(2)
            # Replicas with other records may truncate them from now on.
            assert (after.isr, after.unclean_epoch) == ((2,), after.leader_epoch)

    run(work())


def test_a_replica_that_does_not_report_is_not_waited_for_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = await lose_power(cluster, 1, 2, 3)
            await report(first, 500)
            await report(second, 1500)
            # What it has said of an older state, it says no more.
            await report(third, 9000, older=1)
            assert await controller_of([first, second, third]).controller.elect_leaders([T0], unclean=True) == {
                T0: None
            }
            await first.until_led(2)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert "t-0: broker 2 is elected although its log is not known to be whole; it has a log that ends at 1500" in (
        caplog.text
    )
    assert "broker 3 has not reported" in caplog.text


def test_without_any_report_the_first_member_of_the_isr_leads_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 2, 1, 3)
            # Another run of the broker has said so.
            await report(brokers[2], 9000, run_of=12345)
            await controller_of(brokers).controller.elect_leaders(None, unclean=True)
            await brokers[0].until_led(2)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert "no replica has reported what it has" in caplog.text


def test_a_request_whose_time_is_over_before_the_reports_are_there_elects_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 1, 2, 3)
            await report(brokers[0], 500)
            controller = controller_of(brokers).controller
            with pytest.raises(RequestTimedOut, match=r"not all logs are known after 3 s.*t-0 by broker 2, 3"):
                await controller.elect_leaders([T0], unclean=True, timeout_s=3)
            await brokers[0].watcher.caught_up(TIMEOUT_S)
            assert brokers[0].partition().leader == -1

    run(work())


def test_the_next_controller_goes_by_the_same_reports(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 1, 2, 3)
            controller = controller_of(brokers)
            others = [each for each in brokers if each is not controller]
            await report(others[0], 700)
            election = asyncio.ensure_future(controller.controller.elect_leaders([T0], unclean=True))
            await others[1].watcher.caught_up(TIMEOUT_S)
            controller.expire()
            with pytest.raises(KafkaliteError):
                await election
            await others[0].until(lambda state: any(each.controller.is_active for each in others))
            # The one that is gone is not waited for.
            await report(others[1], 800)
            assert await controller_of(others).controller.elect_leaders([T0], unclean=True) == {T0: None}
            await others[0].until_led(others[1].registration.broker_id)

    run(work())


def test_an_operators_choice_is_elected_if_it_is_still_what_the_operator_saw(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 1, 2, 3)
            first = brokers[0]
            for broker, end in zip(brokers[:2], (500, 1500), strict=True):
                await report(broker, end)
            controller = controller_of(brokers).controller
            epoch = first.partition().leader_epoch

            async def elect(broker: int, leader_epoch: int) -> object:
                chosen = {T0: Chosen(BrokerId(broker), LeaderEpoch(leader_epoch))}
                return (await controller.elect_leaders([T0], unclean=True, chosen=chosen))[T0]

            assert isinstance(await elect(1, epoch - 1), FencedLeaderEpoch)
            # It has not reported, it is no replica.
            for broker in (3, 4):
                assert isinstance(await elect(broker, epoch), EligibleLeadersNotAvailable)
            assert first.partition().leader == -1
            assert await elect(1, epoch) is None
            after = await first.until_led(1)
            assert (after.isr, after.unclean_epoch) == ((1,), after.leader_epoch)

    run(work())


def test_a_replica_that_leads_leads_anew_with_the_damage_that_an_operator_has_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, *others = cluster.brokers
            await first.controller.create_topics([TopicSpec("t", assignment={0: [1, 2, 3]})])
            before = await first.until_led(1)
            controller = controller_of(cluster.brokers).controller
            epoch = before.leader_epoch

            async def accept(broker: int, leader_epoch: int, *ranges: tuple[int, int]) -> object:
                chosen = {T0: Chosen(BrokerId(broker), LeaderEpoch(leader_epoch), ranges)}
                return (await controller.elect_leaders([T0], unclean=True, chosen=chosen))[T0]

            assert isinstance(await accept(1, epoch - 1, (5, 9)), FencedLeaderEpoch)
            # It does not lead, and one that leads needs no election without anything to accept.
            assert isinstance(await accept(2, epoch, (5, 9)), ElectionNotNeeded)
            assert isinstance(await accept(1, epoch), ElectionNotNeeded)
            assert first.partition() == before
            assert await accept(1, epoch, (5, 9), (20, 30)) is None
            await first.until(lambda state: state.topics["t"].partitions[0].leader_epoch > epoch)
            after = first.partition()
            incarnation = first.registration.incarnation
            assert after.accepted_damage == AcceptedDamage(incarnation, ((5, 9), (20, 30)))
            assert (after.leader, after.isr, after.incarnations) == (1, before.isr, before.incarnations)
            # Another log leads: what it may come to lack nobody has seen.
            first.expire()
            assert (await others[0].until_led(2)).accepted_damage is None

    run(work())


def test_reports_that_come_go_and_cannot_be_read_are_taken_as_they_are(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            first, second, third = await lose_power(cluster, 1, 2, 3)
            reads = first.controller.log_reports

            async def counted() -> dict[int, int]:
                await reads.read()
                found = reads.counted(T0, first.partition(), first.state.brokers)
                return {broker: log.end_offset for broker, log in found.items()}

            assert await counted() == {}
            await report(second, 7)
            assert await counted() == {2: 7}
            await report(third, 8)
            assert await counted() == {2: 7, 3: 8}
            await answer(third.store.set(report_path(3, 0), b"{"))
            await answer(cluster.observer.create("/kafkalite/logs/x", b"{"))
            assert await counted() == {2: 7}
            await answer(second.store.delete(report_path(2, 0)))
            assert await counted() == {}
            await report(second, 9)
            assert await counted() == {2: 9}

    run(work())


def test_where_a_setting_allows_it_the_best_log_leads_and_offline_ones_are_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            brokers = await lose_power(cluster, 1, 2, 3)
            first, second, third = brokers
            for broker in brokers:
                await report(broker, 0, gone=OFFLINE)
            epoch = first.partition().leader_epoch
            cluster.allows_unclean = True
            for broker in brokers:
                broker.controller.check_everything()
            # Everybody has reported, and nobody can lead: no epoch is used up for that.
            await first.controller.log_reports.read()
            await asyncio.sleep(30)
            await first.watcher.caught_up(TIMEOUT_S)
            assert (first.partition().leader, first.partition().leader_epoch) == (-1, epoch)
            # Both come back, one after the other.
            await answer(second.store.delete(report_path(2, 0)))
            await answer(third.store.delete(report_path(3, 0)))
            await first.watcher.caught_up(TIMEOUT_S)
            await report(second, 500)
            await report(third, 1500)
            after = await first.until_led(3)
            assert (after.isr, after.leader_epoch) == ((3,), epoch + 1)

    run(work())


def test_where_nothing_is_gained_by_waiting_the_best_log_leads_without_an_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.recovers = True
            first, second, third = await lose_power(cluster, 1, 2, 3)
            await report(first, 500, high_watermark=1600)
            await report(third, 1500, high_watermark=1300)
            # However long that takes: broker 2 may have more.
            await asyncio.sleep(30)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition().leader == -1
            await report(second, 1400)
            after = await first.until_led(3)
            assert (after.isr, after.unclean_epoch) == ((3,), -1)

    with caplog.at_level(logging.WARNING):
        run(work())
    (said,) = [line for line in caplog.messages if "is elected" in line]
    assert said == (
        "t-0: broker 3 is elected: no replica could prove its log, as after a power loss of all hosts, all have "
        "reported, and none has more than this one; it has a log that ends at 1500 under leader epoch 1; the highest "
        "high watermark that a replica remembers is 1600: 100 committed records are on no disk any more"
    )


@pytest.mark.parametrize("goes", [False, True])
def test_a_report_that_changes_before_the_election_is_written_has_it_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.recovers = True
            first, second, third = await lose_power(cluster, 1, 2, 3)
            refused: list[StateChange] = []
            write = FencedNodes.write

            async def late(nodes: FencedNodes, changes: Sequence[StateChange]) -> list[PartitionState]:
                if changes[0].checks and not refused:
                    refused.extend(changes)
                    if goes:
                        await answer(third.store.delete(report_path(3, 0)))
                    else:
                        await report(third, 9000, replaces=True)
                return await write(nodes, changes)

            monkeypatch.setattr(FencedNodes, "write", late)
            for broker, end in ((first, 500), (second, 1500), (third, 1500)):
                await report(broker, end)
            if goes:
                await asyncio.sleep(30)
                await first.watcher.caught_up(TIMEOUT_S)
                assert refused and first.partition().leader == -1
                await report(third, 9000)
            after = await first.until_led(3)
            assert refused[0].after.leader == 2 and after.leader_epoch == refused[0].after.leader_epoch

    run(work())


def test_a_topic_without_records_needs_no_operator(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.recovers = True
            brokers = await lose_power(cluster, 1, 2, 3)
            for broker in brokers:
                await report(broker, 0, gone=EMPTY)
            # Nothing was ever there, and all replicas say so.
            assert (await brokers[0].until_led(1)).isr == (1,)

    run(work())


def test_a_state_that_was_deleted_is_made_again_by_what_all_logs_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.recovers = True
            first, second, third = await lose_state(cluster, 1, 2, 3)
            # Broker 1 led under epoch 7, and appended nothing.
            await report(first, 500, last_epoch=5, leader_epoch=7)
            await report(third, 400, last_epoch=5)
            # However long that takes: broker 2 may have more.
            await asyncio.sleep(30)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition().names_nobody
            await report(second, 600, last_epoch=5)
            made = await first.until_led(2)
            assert (made.isr, made.leader_epoch, made.version) == ((2,), 8, 1)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert "made the missing registry node /brokers/topics/t/partitions/0/state" in caplog.text
    assert "t-0: broker 2 is elected: its registry node was missing, all have reported" in caplog.text


def test_reports_for_a_state_that_was_deleted_do_not_count_for_the_next_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            cluster.recovers = True
            first, second = await lose_state(cluster, 1, 2)
            await report(first, 500)
            before = first.partition()
            await answer(first.store.delete(znodes.state_path("t", 0)))
            await first.until(lambda state: state.topics["t"].partitions[0].created_zxid > before.created_zxid)
            # Under the states between, broker 1 may have been made to cut its log back.
            await report(second, 400)
            await asyncio.sleep(30)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition().names_nobody
            await report(first, 300, replaces=True)
            await first.until_led(2)

    run(work())


def test_a_partition_without_a_state_and_without_any_record_is_new(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2) as cluster:
            # Not by the setting, which is off.
            first, second = await lose_state(cluster, 1, 2)
            await report(first, 0, last_epoch=-1)
            await asyncio.sleep(30)
            assert first.partition().names_nobody
            await report(second, 0, last_epoch=-1)
            await first.until_led(1)

    run(work())


def test_an_operator_elects_where_a_replica_is_away_and_its_leader_epoch_is_not_used_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_cluster(tmp_path, 1, 2, 3) as cluster:
            cluster.recovers = True
            first, second, third = await lose_state(cluster, 1, 2, 3)
            await report(first, 500, last_epoch=5)
            await report(second, 400, last_epoch=5)
            third.expire()
            await third.end()
            await asyncio.sleep(30)
            await first.watcher.caught_up(TIMEOUT_S)
            assert first.partition().names_nobody
            controller = controller_of([first, second]).controller
            assert await controller.elect_leaders([T0], unclean=True) == {T0: None}
            # Broker 3 may have led under a few epochs that nobody else has heard of.
            assert (await first.until_led(1)).leader_epoch > 100

    run(work())
