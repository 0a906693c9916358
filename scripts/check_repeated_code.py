"""Check that no two files of the package have the same lines of code in a row, as pylint's ``duplicate-code`` does.

    python scripts/check_repeated_code.py    # exit code 1 if something has to change

The comparison is pylint's (``pylint.checkers.symilar``). pylint itself infers the types of the whole package first, for
imports and signatures that ``ast`` finds: five sixths of its time. It also compares each file with each other one. Here
only files that share a hash are compared.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pylint.checkers.symilar import LineSet, Symilar, hash_lineset

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "spark_kafkalite"
# Generated, and much alike.
_LEFT_OUT: Final = "wire/messages"
_MINIMUM_LINES: Final = 13
_SCOPES: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(text: str) -> str:
    """Return a module's text with empty lines for its imports and for the signatures of its functions, with
    their decorators."""
    module, lines = ast.parse(text), text.splitlines()
    ignored = {
        number
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for function in _functions(module.body):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        ignored.update(range(first, function.body[0].lineno))
    return "".join("\n" if number in ignored else f"{line}\n" for number, line in enumerate(lines, start=1))


def _functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions in the bodies of classes and of other functions, as pylint does."""
    for node in body:
        if isinstance(node, _SCOPES):
            if not isinstance(node, ast.ClassDef):
                yield node
            yield from _functions(node.body)


def repeated(codes: dict[str, str], minimum: int) -> str:
    """Return pylint's report of what repeats more than ``minimum`` lines; nothing where nothing does. ``codes`` has
    what :func:`code_of` returned for each file."""
    kept = _with_shared_hashes(codes, minimum)
    similar = Symilar(min_lines=minimum, ignore_comments=True, ignore_docstrings=True)
    for name in kept:
        similar.append_stream(name, io.StringIO(codes[name]))
    report = io.StringIO()
    if kept:
        with contextlib.redirect_stdout(report):
            similar.run()
    return report.getvalue() if "similar lines in" in report.getvalue() else ""


def _with_shared_hashes(codes: dict[str, str], minimum: int) -> list[str]:
    """Return the files with a row of ``minimum`` lines whose hash some other file has, too."""
    hashes = {
        name: set(
            hash_lineset(
                LineSet(name, code.splitlines(keepends=True), ignore_comments=True, ignore_docstrings=True), minimum
            ).hash_to_index
        )
        for name, code in codes.items()
    }
    counts = Counter(each for of_file in hashes.values() for each in of_file)
    return [name for name, of_file in hashes.items() if any(counts[each] > 1 for each in of_file)]


def main() -> int:
    paths = (str(path.relative_to(ROOT)) for path in sorted((ROOT / PACKAGE).rglob("*.py")))
    codes = {path: code_of((ROOT / path).read_text(encoding="utf-8")) for path in paths if _LEFT_OUT not in path}
    report = repeated(codes, _MINIMUM_LINES)
    print(report, end="")
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main())
