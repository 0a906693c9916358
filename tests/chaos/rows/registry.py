"""Rows in which the registry is away, or cut off from a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.chaos.lines import REGISTRY, ForwardedLines
from tests.chaos.rows.stage import FAILOVER_S, GOES_ON, ISR_WITHIN_S, REQUEST_TIMEOUT_S, SLACK_S, Row, Stage
from tests.chaos.workload import RunFailed

# Producers that ask for all in-sync replicas do not need the registry.
_UNAFFECTED_S: Final = 1.0 + SLACK_S
_RECOVERY_S: Final = 10.0
# A cut that is shorter than what a session lasts.
_CUT_S: Final = 1.0


def cut_the_leader_from_the_registry(stage: Stage) -> None:
    """The leader reaches everybody but the registry, for longer than its session."""
    leader = stage.leader
    bound_s = FAILOVER_S + REQUEST_TIMEOUT_S
    with stage.fault("cut leader from the registry", leader, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        stage.cluster.lines.hold(leader, REGISTRY)
        stage.wait_until("all led by others", lambda: not stage.led_by(leader))
        stage.wait_for_more(GOES_ON)
        stage.cluster.lines.heal()


def interrupt_the_registry(stage: Stage) -> None:
    """The registry stands still for less than a session and for more, is stopped in order for more, and is killed. Who
    asks for acks=all notices nothing, nobody is elected, and all else goes on within ten seconds of its return."""
    bounds = {"longest_gap_s": _UNAFFECTED_S, "elections": 0}
    _interrupt_the_registry(stage, bounds, bounds)


def interrupt_zookeeper(stage: Stage) -> None:
    """The same with a real ZooKeeper, which ends sessions when it has stood still for longer than they last: then all
    goes on within ten seconds of its return."""
    _interrupt_the_registry(stage, {"longest_gap_s": _UNAFFECTED_S, "elections": 0}, {"longest_gap_s": _RECOVERY_S})


def _interrupt_the_registry(stage: Stage, short: Mapping[str, Any], long: Mapping[str, Any]) -> None:
    """Do it; ``short`` is asked for where no session ends, ``long`` where its time is over."""
    registry = stage.cluster.cluster.registry
    asked = {"isr_within_s": _RECOVERY_S, "resumes_within_s": _RECOVERY_S}
    with stage.fault("pause registry", "2 s", errors_at_most=0, **asked, **short):
        registry.pause()
        time.sleep(2)
        registry.resume()
    with stage.fault("pause registry", "20 s", **asked, **long):
        registry.pause()
        time.sleep(20)
        registry.resume()
    with stage.fault("stop registry", "20 s", **asked, **long):
        if code := registry.stop():
            raise RunFailed(f"the registry ends with exit code {code} when it is stopped in order")
        time.sleep(20)
        registry.start()
    with stage.fault("kill registry", "1 s", **asked, **short):
        registry.kill()
        time.sleep(1)
        registry.start()


def cut_the_next_controller_off(stage: Stage) -> None:
    """The controller dies, and its successor loses its connection with the registry as soon as it has the role; or the
    answers to its first elections are lost, or late. Every partition is led in time, and each epoch is raised once."""
    lines = stage.cluster.lines
    assert isinstance(lines, ForwardedLines)

    def refuse(number: int) -> None:
        lines.cut_from_registry(number)
        time.sleep(_CUT_S)

    def lose_answers(number: int) -> None:
        lines.hold_ways([(REGISTRY, number)])
        time.sleep(_CUT_S)
        lines.cut_from_registry(number)

    def delay_answers(number: int) -> None:
        lines.hold_ways([(REGISTRY, number)])
        time.sleep(_CUT_S)

    cuts: tuple[tuple[str, Callable[[int], None]], ...] = (
        ("refuse the next controller's connections", refuse),
        ("lose answers to the next controller", lose_answers),
        ("delay answers to the next controller", delay_answers),
    )
    for name, cut in cuts:
        _cut_the_next_controller_off(stage, lines, name, cut)


def _cut_the_next_controller_off(stage: Stage, lines: ForwardedLines, name: str, cut: Callable[[int], None]) -> None:
    victim = stage.wait_for_controller()
    bounds = {"longest_gap_s": FAILOVER_S + _CUT_S, "isr_within_s": ISR_WITHIN_S, "elections": 1}
    with stage.fault(name, victim, **bounds) as fault:
        stage.brokers[victim].kill()
        cut(stage.wait_for_controller(other_than=victim))
        lines.heal()
        stage.wait_until("all led", lambda: not stage.led_by(victim))
        stage.note_measure(f"an election of everything ({name})", fault.begun, FAILOVER_S)
        stage.brokers[victim].start()


ROWS: Final = (Row("11", cut_the_leader_from_the_registry),)
MORE_ROWS: Final = (
    Row("18a", interrupt_the_registry),
    Row("18b", interrupt_zookeeper, on_zookeeper=True),
    Row("34", cut_the_next_controller_off, ends_connections=True),
)
