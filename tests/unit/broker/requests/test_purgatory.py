import asyncio

import pytest

from spark_kafkalite.broker.requests.purgatory import DelayedOperation, Purgatory


class Operation(DelayedOperation):
    def __init__(self, ready_after: int = 1) -> None:
        super().__init__()
        self.checks = 0
        self.ready_after = ready_after
        self.events: list[str] = []

    def try_complete(self) -> bool:
        self.checks += 1
        if self.checks < self.ready_after or not self.finish():
            return False
        self.events.append("completed")
        return True

    def expire(self) -> None:
        if self.finish():
            self.events.append("expired")

    def fail(self) -> None:
        self.events.append("failed")

    def release(self) -> None:
        self.events.append("released")


class Broken(Operation):
    def try_complete(self) -> bool:
        raise ValueError("a bug")


def test_wake_ups_of_one_pass_are_one_check() -> None:
    async def run() -> None:
        purgatory = Purgatory(asyncio.get_running_loop())
        operation, patient = Operation(), Operation(ready_after=2)
        for _ in range(10):
            purgatory.wake([operation, patient])
        assert operation.checks == 0
        await asyncio.sleep(0)
        assert (operation.checks, patient.checks) == (1, 1)
        purgatory.wake([operation, patient])
        await asyncio.sleep(0)
        assert (operation.checks, patient.checks) == (1, 2)
        assert operation.events == patient.events == ["released", "completed"]

    asyncio.run(run())


def test_finished_once_by_whoever_comes_first() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        expiring, completed, abandoned = Operation(), Operation(), Operation()
        for operation in (expiring, completed, abandoned):
            operation.start_timer(loop, -1)
        assert completed.try_complete()
        abandoned.abandon()
        while not expiring.finished:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert expiring.events == ["released", "expired"]
        assert completed.events == ["released", "completed"]
        assert abandoned.events == ["released"]
        assert not expiring.try_complete()

    asyncio.run(run())


def test_a_bug_in_one_operation_fails_only_that_one(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        purgatory = Purgatory(asyncio.get_running_loop())
        broken, sound = Broken(), Operation()
        purgatory.wake([broken, sound])
        await asyncio.sleep(0)
        assert broken.events == ["failed", "released"]
        assert sound.events == ["released", "completed"]

    asyncio.run(run())
    assert "a bug" in caplog.text
