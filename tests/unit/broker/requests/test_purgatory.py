import asyncio

import pytest

from spark_kafkalite.broker.waiting.deadlines import Deadlines
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation, Purgatory


class Connection:
    def __init__(self, events: list[object]) -> None:
        self.events = events

    def send_answers(self) -> None:
        self.events.append(self)


class Operation(DelayedOperation):
    def __init__(self, ready_after: int = 1, connection: Connection | None = None) -> None:
        super().__init__(connection)
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


def test_answers_of_one_connection_are_sent_together_and_before_the_next_ones_are_made() -> None:
    async def run() -> None:
        purgatory = Purgatory(asyncio.get_running_loop())
        events: list[object] = []
        one, other = Connection(events), Connection(events)
        operations = [Operation(connection=each) for each in (one, one, None, other, other)]
        for operation in operations:
            operation.events = events  # type: ignore[assignment]
        purgatory.wake(operations)
        await asyncio.sleep(0)
        made = ["released", "completed"]
        assert events == [*made, *made, one, *made, *made, *made, other]

    asyncio.run(run())


def test_a_connection_that_fails_while_it_is_sent_to_takes_nobody_down() -> None:
    """Its operations are abandoned in the middle of the check."""

    async def run() -> None:
        purgatory = Purgatory(asyncio.get_running_loop())
        events: list[object] = []
        one, other = Connection(events), Connection(events)
        first, second, last = (Operation(connection=each) for each in (one, other, one))
        one.send_answers = last.abandon  # type: ignore[method-assign]
        purgatory.wake([first, second, last])
        await asyncio.sleep(0)
        assert (first.checks, second.checks, last.checks) == (1, 1, 0)
        assert last.events == ["released"]

    asyncio.run(run())


def test_finished_once_by_whoever_comes_first() -> None:
    async def run() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        expiring, completed, abandoned = Operation(), Operation(), Operation()
        for operation in (expiring, completed, abandoned):
            operation.wait_at_most(-1, deadlines)
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
