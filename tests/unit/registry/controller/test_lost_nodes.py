"""Nodes that somebody removes or overwrites while brokers run: the controller makes again what brokers know."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from spark_kafkalite.errors import KafkaError, NotController
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.controller import controller, topic_changes
from spark_kafkalite.registry.controller.topic_plan import TopicSpec
from spark_kafkalite.registry.store import Create, NoNode, Store, answer
from tests.patience import PATIENCE_S, wait_until_async
from tests.unit.registry.controller.test_controller import cluster
from tests.unit.registry.virtual_time import run

COMPACTED = {"cleanup.policy": "compact"}
TOPIC_CONFIG = znodes.topic_config_path("t")
BROKER_CONFIG = znodes.broker_config_path("<default>")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_COMPLETED_EVERY_S", 0.05)


async def wait_for(store: Store, path: str, data: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await read(store, path) != data:
            await asyncio.sleep(0.01)


async def read(store: Store, path: str) -> bytes | None:
    try:
        return (await answer(store.get(path)))[0]
    except NoNode:
        return None


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def remove(store: Store, path: str) -> None:
    for name in await answer(store.children(path)):
        await remove(store, f"{path}/{name}")
    await answer(store.delete(path))


def test_settings_that_somebody_removes_stay_in_force_and_are_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            await first.controller.create_topics([TopicSpec("t", config=COMPACTED), TopicSpec("u")])
            await answer(first.store.create(BROKER_CONFIG, znodes.encode_config({"log.retention.ms": "5"})))
            await second.until(lambda state: "t" in state.topics and bool(state.broker_configs))
            held = [(await answer(first.store.get(path)))[0] for path in (TOPIC_CONFIG, BROKER_CONFIG)]
            await remove(first.store, "/config")
            for member in (first, second):
                state = await member.watcher.caught_up()
                assert (dict(state.topics["t"].config), len(state.broker_configs)) == (COMPACTED, 1)
            await wait_for(first.store, TOPIC_CONFIG, held[0])
            await wait_for(first.store, BROKER_CONFIG, held[1])
            state = await second.watcher.caught_up()
            assert dict(state.topics["t"].config) == COMPACTED

    run(work())
    assert any(TOPIC_CONFIG in line and "made again with the settings" in line for line in warned(caplog))


@pytest.mark.parametrize("whole", [False, True], ids=["only the id", "everything"])
def test_the_cluster_id_is_written_again_but_not_in_a_registry_that_was_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, _)):
            await first.controller.create_topics([TopicSpec("t")])
            held = await read(first.store, znodes.CLUSTER_ID)
            for path in [f"/{name}" for name in await answer(first.store.children("/"))] if whole else ["/cluster"]:
                await remove(first.store, path)
            await wait_until_async(lambda: any(is_said(line) for line in warned(caplog)), "a line", poll_s=0.01)
            assert (await read(first.store, znodes.CLUSTER_ID)) == (None if whole else held)

    def is_said(line: str) -> bool:
        return znodes.CLUSTER_ID in line and ("it was emptied" if whole else "is made again: do not delete it") in line

    run(work())


def test_a_cluster_id_that_somebody_overwrites_is_named_with_what_to_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (first,)):
            held, _ = await answer(first.store.get(znodes.CLUSTER_ID))
            await answer(first.store.set(znodes.CLUSTER_ID, b"junk"))
            await wait_until_async(lambda: any(is_said(line, held) for line in warned(caplog)), "a line", poll_s=0.01)
            assert await read(first.store, znodes.CLUSTER_ID) == b"junk"

    def is_said(line: str, held: bytes) -> bool:
        return "was overwritten" in line and held.decode() in line

    run(work())


@pytest.mark.parametrize("left", [None, b"\xffjunk", b"99999999999"])
def test_a_controller_epoch_that_somebody_removes_or_overwrites_rises_above_all_that_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: bytes | None
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, _)):
            for data in (b"6", left):
                if data is None:
                    await answer(first.store.delete(znodes.CONTROLLER_EPOCH))
                else:
                    await answer(first.store.set(znodes.CONTROLLER_EPOCH, data))
                with pytest.raises(NotController):
                    await first.controller.role.write([])
                await wait_until_async(lambda: first.controller.is_active, "the role is back", poll_s=0.01)
                created = await first.controller.create_topics([TopicSpec(f"of-{first.controller.epoch}")])
                assert not any(isinstance(each, KafkaError) for each in created.values())
            assert first.controller.epoch == 7
            assert await read(first.store, znodes.CONTROLLER_EPOCH) == b"7"

    run(work())
    assert any(znodes.CONTROLLER_EPOCH in line and "above epoch 6" in line for line in warned(caplog))


def test_thousands_of_marked_topics_that_do_not_exist_hold_up_no_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "_FINISHED_AT_ONCE", 5)

    async def work() -> None:
        async with cluster(tmp_path, 1) as (_, (only,)):
            await only.controller.create_topics([TopicSpec("marked")])
            paths = [znodes.deleted_topic_path(name) for name in ("marked", *(f"none-{each}" for each in range(200)))]
            await answer(only.store.multi([Create(path) for path in paths]))
            await only.controller.create_topics([TopicSpec("t")])
            assert await answer(only.store.children(znodes.DELETED_TOPICS)) != []
            async with asyncio.timeout(PATIENCE_S):
                while await answer(only.store.children(znodes.DELETED_TOPICS)):
                    await asyncio.sleep(0.01)
            assert list((await only.watcher.caught_up()).topics) == ["t"]

    run(work())


def test_ephemeral_nodes_that_somebody_overwrites_are_named_with_what_to_delete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, 2) as (_, (first, second)):
            for path in (znodes.CONTROLLER, znodes.broker_path(2)):
                await answer(first.store.set(path, b"junk"))
            state = await first.watcher.caught_up()
            assert (state.controller_id, set(state.brokers)) == (1, {1, 2})
            await answer(first.store.delete(znodes.CONTROLLER))
            await second.until(lambda state: state.controller_id != -1)

    run(work())
    remedies = {znodes.CONTROLLER: "a broker becomes the controller", znodes.broker_path(2): "broker 2 registers again"}
    for path, remedy in remedies.items():
        assert any(path in line and f"delete the node, and {remedy}" in line for line in warned(caplog))
