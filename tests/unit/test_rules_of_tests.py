"""Rules of the tests themselves: none passes or fails by how long something took, and all wait by one helper.

A slow host, or one that stands still for a second, must not fail a test. What has to be measured belongs in ``bench/``,
as a ratio to a control in the same run, or in the soak. The lists of exceptions may only shrink: an exception that is
no longer needed fails, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.paths import PROJECT

_CLOCKS: Final = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "thread_time",
    "time",
    "time_ns",
    "used_s",
    "slowness",
}
# They wait for others: what tests use, and what owns the wait. The parts in tests/lab start processes.
_OWNERS: Final = ("tests/patience.py", "tests/processor.py", "tests/pool/", "tests/lab/")

# An assertion that reads a clock, by file and function, and why a slow host cannot fail it.
_LEAST = "at least as long as it has to wait"
_BETWEEN = "between two readings of the clock"
_HOURS = "an hour of slack"
MAY_ASSERT_TIMES: Final = {
    ("tests/chaos/test_links.py", "test_a_slow_line_takes_its_time"): _LEAST,
    ("tests/chaos/test_links.py", "test_data_is_delayed_and_stays_in_order"): _LEAST,
    ("tests/cli/test_security.py", "test_the_doctor_comes_in_and_sees_the_certificate"): "a certificate of 90 days",
    ("tests/interop/broker/test_durability.py", "test_flushed_visibility_by_time"): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_producers_keep_to_their_rate"): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_java_keeps_to_its_rate_and_says_that_it_was_throttled"): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_consumers_keep_to_their_rate_and_lose_nothing"): _LEAST,
    (
        "tests/interop/broker/test_quotas.py",
        "test_five_requests_in_flight_are_answered_in_order",
    ): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_produces_without_answers_mute_the_connection"): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_an_opening_fetch_over_the_quota_has_no_session"): _LEAST,
    ("tests/interop/broker/test_quotas.py", "test_a_broker_and_a_listener_accept_so_many_connections_a_second"): _LEAST,
    ("tests/interop/broker/test_visibility.py", "test_flush_ms_bounds_how_long_records_stay_hidden"): _LEAST,
    ("tests/interop/client/test_consumer.py", "test_a_poll_with_nothing_to_give_waits_for_its_time"): _LEAST,
    ("tests/interop/client/test_faults.py", "test_full_memory_fails_after_max_block"): _LEAST,
    ("tests/interop/groups/test_protocol.py", "test_a_silent_member_goes_when_its_session_ends"): _LEAST,
    (
        "tests/interop/hostile/test_crowds.py",
        "test_a_good_client_goes_on_when_no_descriptor_is_left",
    ): "the time of a record",
    ("tests/interop/hostile/test_limits.py", "test_a_slow_request_is_given_up"): _LEAST,
    ("tests/interop/other_clients/test_matrix.py", "test_log_append_time_is_the_brokers"): _BETWEEN,
    ("tests/interop/requests/test_protocol.py", "test_waits_no_longer_than_asked"): _LEAST,
    ("tests/interop/security/test_rights.py", "refused"): "in the soak only",
    ("tests/interop/spark/test_tasks.py", "test_times_of_a_topic_whose_broker_stamps_records"): _BETWEEN,
    ("tests/spark/test_replay_runs.py", "test_a_replay_goes_no_faster_than_it_may"): _LEAST,
    ("tests/unit/cli/test_doctor.py", "test_the_probe_tells_what_is_here_and_what_it_cannot_reach"): _HOURS,
    ("tests/unit/cli/test_doctor.py", "test_the_probe_tells_when_its_own_certificate_ends"): _HOURS,
    (
        "tests/unit/client/registry_consumer/test_registry_member.py",
        "test_reading_is_leased_for_the_session_s_time_since_the_question",
    ): _BETWEEN,
    (
        "tests/unit/registry/test_zookeeper_socket.py",
        "test_the_time_passes_and_requests_of_other_threads_end_the_wait",
    ): _LEAST,
    ("tests/unit/security/test_token_endpoint.py", "test_a_token_by_client_credentials"): _BETWEEN,
    ("tests/unit/security/test_token_endpoint.py", "test_an_opaque_token_expires_as_the_answer_says"): _BETWEEN,
    ("tests/unit/security/test_tokens.py", "test_an_unsecured_token_is_a_jwt_without_signature"): _BETWEEN,
    ("tests/unit/test_clock.py", "test_wall_time_is_the_systems_in_whole_milliseconds"): _BETWEEN,
}
# A loop with a deadline of its own, and why it is not tests.patience.
_OWN_FAILURE = "it ends the run with an error of its own"
_SOAK = "in the soak only"
_LOAD = "it makes load or trouble for some time"
MAY_HAVE_DEADLINES: Final = {
    ("tests/boards/__main__.py", "consume"): "it is no test: the group falls behind from time to time",
    ("tests/chaos/clients/registry_readers.py", "_read"): _LOAD,
    ("tests/chaos/play.py", "_come_to_rest"): _OWN_FAILURE,
    ("tests/chaos/rows/disks.py", "_read"): _OWN_FAILURE,
    ("tests/chaos/rows/losses.py", "_check_leaderless"): "that nothing happens is looked at for some time",
    ("tests/chaos/rows/troubles.py", "trouble_brokers"): _LOAD,
    ("tests/chaos/workload.py", "_ends"): _OWN_FAILURE,
    ("tests/chaos/workload.py", "_wait"): _OWN_FAILURE,
    ("tests/chaos/workload.py", "make_topic"): _OWN_FAILURE,
    ("tests/cluster_day/day.py", "_wait_for_the_evening"): _SOAK,
    ("tests/cluster_day/part.py", "wait_until"): _SOAK,
    ("tests/cluster_day/passing_topics.py", "_persist"): _SOAK,
    ("tests/cluster_day/spark_parts.py", "run"): _SOAK,
    ("tests/crash/loop_disk.py", "_image_now"): "between its looks it goes another way",
    ("tests/crash/loop_disk.py", "_unmount"): "afterwards it unmounts in another way",
    ("tests/interop/client/test_delivery_recipes.py", "run"): "the moment of a kill, which need not come",
    ("tests/interop/hostile/mutating_peer.py", "run"): _LOAD,
    ("tests/interop/security/test_reference_clients.py", "reason_of_refusal"): "librdkafka may name no reason",
    ("tests/interop/storms/storm.py", "finish"): "a group that does not come to rest is a finding",
}
# A unit test that sleeps, and why.
MAY_SLEEP: Final = {
    ("tests/unit/log/files/test_fs.py", "put_out_of_memory"): "the kernel takes advice when it has time for it",
    ("tests/unit/records/test_kernel.py", "count"): "a thread that the kernel under test has to let run",
}


@dataclass(frozen=True)
class Function:
    """One function of a test file, without what the functions in it do."""

    file: str
    name: str
    nodes: tuple[ast.AST, ...]
    is_soak: bool


@cache
def functions(root: Path = PROJECT) -> tuple[Function, ...]:
    return tuple(_functions(root))


def _functions(root: Path) -> Iterator[Function]:
    for path in sorted((root / "tests").rglob("*.py")):
        file = str(path.relative_to(root))
        text = path.read_text(encoding="utf-8")
        if not file.startswith(_OWNERS) and any(word in text for word in (*_CLOCKS - {"time"}, "time.time", "sleep")):
            tree = ast.parse(text)
            soak_file = any(
                isinstance(each, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in each.targets)
                and "mark.soak" in ast.unparse(each)
                for each in tree.body
            )
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    soak = soak_file or any("mark.soak" in ast.unparse(each) for each in node.decorator_list)
                    yield Function(file, node.name, tuple(_own_nodes(node)), soak)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _own_nodes(child)


def _reads_clock(node: ast.AST, named: frozenset[str] = frozenset()) -> bool:
    """Whether an expression calls a clock, or uses a name that holds what one said."""
    return any(_calls_clock(each) or (isinstance(each, ast.Name) and each.id in named) for each in ast.walk(node))


def _calls_clock(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    # ``clock.monotonic()`` is a clock that the test holds in its hand.
    of_host = not isinstance(called, ast.Attribute) or getattr(called.value, "id", "") in ("time", "processor")
    return name in _CLOCKS and of_host


@cache
def _clock_names(function: Function) -> frozenset[str]:
    """Return the local names that hold a time of the host's clock, or a difference of two."""
    named: frozenset[str] = frozenset()
    while any(_calls_clock(node) for node in function.nodes):
        found = named | {
            target.id
            for node in function.nodes
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and _is_time(node.value, named)
        }
        if found == named:
            break
        named = found
    return named


def _is_time(value: ast.AST, named: frozenset[str]) -> bool:
    """Whether a value is a reading, a sum or difference of such, or the largest of some."""
    if isinstance(value, ast.BinOp):
        return _is_time(value.left, named) or _is_time(value.right, named)
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("max", "min", "sum", "round", "float"):
        return any(_reads_clock(argument, named) for argument in value.args)
    if isinstance(value, ast.Call | ast.Name):
        return _reads_clock(value.func if isinstance(value, ast.Call) else value, named) or (
            isinstance(value, ast.Call) and not value.args and _reads_clock(value)
        )
    return False


def timed_assertions(root: Path = PROJECT) -> set[tuple[str, str]]:
    """Return where an assertion compares a time of the host's clock."""
    found = set()
    for function in functions(root):
        named = frozenset[str]() if function.is_soak else _clock_names(function)
        for node in function.nodes if not function.is_soak else ():
            if isinstance(node, ast.Assert) and any(
                isinstance(each, ast.Compare) and _reads_clock(each, named) for each in ast.walk(node.test)
            ):
                found.add((function.file, function.name))
    return found


def own_deadlines(root: Path = PROJECT) -> set[tuple[str, str]]:
    """Return where a loop goes on until a time of the host's clock."""
    found = set()
    for function in functions(root):
        named = _clock_names(function)
        for node in function.nodes:
            if isinstance(node, ast.While):
                tests = [node.test, *(each.test for each in ast.walk(node) if isinstance(each, ast.If | ast.Assert))]
                if any(
                    isinstance(each, ast.Compare) and _reads_clock(each, named)
                    for test in tests
                    for each in ast.walk(test)
                ):
                    found.add((function.file, function.name))
    return found


def sleeping_units() -> set[tuple[str, str]]:
    return {
        (function.file, function.name)
        for function in functions()
        if function.file.startswith("tests/unit/")
        for node in function.nodes
        if isinstance(node, ast.Call) and _is_sleep(node.func)
    }


def _is_sleep(called: ast.AST) -> bool:
    """Whether this is ``sleep`` or ``time.sleep``."""
    if isinstance(called, ast.Attribute):
        return called.attr == "sleep" and isinstance(called.value, ast.Name) and called.value.id == "time"
    return isinstance(called, ast.Name) and called.id == "sleep"


def test_no_test_asserts_a_time() -> None:
    assert timed_assertions() == set(MAY_ASSERT_TIMES)


def test_tests_wait_by_the_one_helper() -> None:
    assert own_deadlines() == set(MAY_HAVE_DEADLINES)


def test_unit_tests_do_not_sleep() -> None:
    assert sleeping_units() == set(MAY_SLEEP)
