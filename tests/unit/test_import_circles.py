"""No two modules of the package import each other: not inside functions, for types only, or by way of others either."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import spark_kafkalite

PACKAGE = Path(spark_kafkalite.__file__).parent


def imports_of(source: str, modules: Iterable[str]) -> set[str]:
    """Return which of the modules a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules else node.module)
    return found & set(modules)


def circles(edges: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or not. (Tarjan's algorithm.)"""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = set()

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in edges[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.add(frozenset(group))

    for module in edges:
        if module not in number:
            visit(module)
    return found


def test_modules_do_not_import_each_other() -> None:
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    edges = {name: imports_of(path.read_text(encoding="utf-8"), paths.keys()) - {name} for name, path in paths.items()}
    assert len(edges) > 400 and sum(map(len, edges.values())) > 1000
    found = circles(edges)
    assert not found, [sorted(each) for each in found]


def test_circles_are_found_wherever_the_imports_are() -> None:
    sources = {
        "p.a": "from p.b import x",
        "p.b": "def f():\n    from p import c",
        "p.c": "if TYPE_CHECKING:\n    import p.a",
        "p.d": "from p.a import y\nimport os",
        "p.e": "from p import d",
    }
    edges = {name: imports_of(source, sources) for name, source in sources.items()}
    assert edges["p.e"] == {"p.d"}
    assert circles(edges) == {frozenset({"p.a", "p.b", "p.c"})}
