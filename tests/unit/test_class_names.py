"""One name, one thing: no two classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import spark_kafkalite

PACKAGE = Path(spark_kafkalite.__file__).parent
# Generated: their names are those of Kafka's schemas, as qualified there by the file as here.
GENERATED = PACKAGE / "wire" / "messages"


def sources() -> Iterator[tuple[str, str]]:
    """Yield the path, from the package on, and the text of each module that people write."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if GENERATED not in path.parents:
            yield str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")


def doubles(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that more than one class has, private and nested ones too, and where these are."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in modules:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_classes_have_the_same_name() -> None:
    modules = list(sources())
    assert len(modules) > 300
    assert doubles(modules) == {}, "give one of each the field's own word for what it is, or make them one"


def test_doubles_are_found_wherever_they_are() -> None:
    modules = [("a.py", "class A: pass\nclass B:\n    class C: pass\n"), ("b.py", "class C: pass\nclass D: pass\n")]
    assert doubles(modules) == {"C": ["a.py:3", "b.py:1"]}
