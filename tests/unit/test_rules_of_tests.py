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
# They wait for others: what tests use, and what owns the wait.
_OWNERS: Final = ("tests/patience.py", "tests/processor.py", "tests/pool/")

# An assertion that reads a clock, by file and function, and why a slow host cannot fail it.
MAY_ASSERT_TIMES: Final[dict[tuple[str, str], str]] = {}
# A loop with a deadline of its own, and why it is not tests.patience.
MAY_HAVE_DEADLINES: Final[dict[tuple[str, str], str]] = {}
# A unit test that sleeps, and why.
MAY_SLEEP: Final[dict[tuple[str, str], str]] = {}


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
        if not file.startswith(_OWNERS):
            tree = ast.parse(path.read_text(encoding="utf-8"))
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
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            called = each.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            # ``clock.monotonic()`` is a clock that the test holds in its hand.
            of_host = not isinstance(called, ast.Attribute) or getattr(called.value, "id", "") in ("time", "processor")
            if name in _CLOCKS and of_host:
                return True
        elif isinstance(each, ast.Name) and each.id in named:
            return True
    return False


def _clock_names(function: Function) -> frozenset[str]:
    """Return the local names that hold a time of the host's clock, or a difference of two."""
    named: frozenset[str] = frozenset()
    while any(_reads_clock(node) for node in function.nodes if isinstance(node, ast.Call)):
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
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
    }


def test_no_test_asserts_a_time() -> None:
    assert timed_assertions() == set(MAY_ASSERT_TIMES)


def test_tests_wait_by_the_one_helper() -> None:
    assert own_deadlines() == set(MAY_HAVE_DEADLINES)


def test_unit_tests_do_not_sleep() -> None:
    assert sleeping_units() == set(MAY_SLEEP)
