"""Check the English of README, docs, messages and docstrings: words with a plainer equivalent, and long sentences.

    python scripts/check_prose.py            # all files; exit code 1 if something has to change
    python scripts/check_prose.py FILE ...   # what has to change in these files

Code blocks and code spans are not checked.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_WORDS = 40
# A string with fewer words is a name, an option or a format rather than a text.
MIN_WORDS_OF_A_MESSAGE = 4

WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"bears?": "tolerate",
    r"anew": "again",
    r"a?midst": "in, among",
    r"aims?": "the goal is",
    r"told": "is notified of, receives; or name what the program printed",
    r"tells?": "reports, prints, returns",
    r"(says?|said|saying)": "reports, prints, returns, states",
    r"hear[sd]? of": "receives, is notified of",
    r"look(s|ed|ing)? at": "check, read, inspect",
    r"prov(e|es|ed|ing) (itself|themselves|himself)": "authenticate",
    r"beside": "next to, together with, compared with, in addition to",
    r"(nothing of|none of it)": "name it",
    r"(give|gives|gave|given|giving) back": "release, relinquish, return",
    r"as of when": "since when",
    r"'s (matter|business)": "name what decides",
    r"of (ours|yours|theirs)": "our, your, their",
    r"long ago": "old",
    r"(come|comes|came|coming) late": "is delayed",
    r"(is|are|was|were) there": "exists",
    r"(is|are|was|were) away": "is unavailable",
    r"(stand|stands|stood) in": "is in",
    r"(go|goes|went) by": "uses",
    r"(who|whoever|whom)": "name the thing or the person",
    r"(nobody|anybody|everybody|somebody)": "name the thing or the person",
    r"he": "it, or name the person",
}
_WORD = re.compile(r"(?i)(?<![\w'-])(?:" + "|".join(f"({pattern})" for pattern in WORDS) + r")(?![\w-])")
_POSSESSIVE = re.compile(r"(?i)(?<=\w)('s (?:matter|business))\b")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`\[]*[A-Z0-9`])")


def problems(paragraphs: Iterator[str]) -> list[str]:
    """Return what has to change in the paragraphs of one file, each with the words around it."""
    found = []
    for paragraph in paragraphs:
        for match in [*_WORD.finditer(paragraph), *_POSSESSIVE.finditer(paragraph)]:
            around = paragraph[max(0, match.start() - 40) : match.end() + 30].strip()
            found.append(f"'{match[0]}' in: {around}")
        for sentence in _SENTENCE_END.split(paragraph):
            count = len(re.findall(r"[\w`][^\s]*", sentence))
            if count > MAX_WORDS:
                found.append(f"{count} words in one sentence: {sentence[:90]}")
    return found


def page_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs, list items and cells of a Markdown page, without code blocks; a code span is one word."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    text = re.sub(r"`[^`]+`", "`code`", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    # A line with two blanks in a row behind its first words is a row of a docstring's list.
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=[|#])|(?<=\|)\n|\n(?=\s*\S(?:.*?\S)? {2,}\S)", text):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            if plain := " ".join(cell.split()):
                yield plain


def module_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a module's docstrings and messages; what is filled into a message is one word."""
    tree = ast.parse(text)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "`code`" for part in node.values)
            words = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            words = node.value
        else:
            continue
        # The examples of a command are code.
        words = re.sub(r"(?m)^ +kafkalite .*$", "", words)
        if len(words.split()) >= MIN_WORDS_OF_A_MESSAGE:
            yield from page_paragraphs(re.sub(r"``[^`]+``", "`code`", words))


def checked_files() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    modules = [
        path for name in ("spark_kafkalite", "pyspark_kafkalite") for path in sorted((ROOT / name).rglob("*.py"))
    ]
    return pages + [path for path in modules if path.parent.name != "messages"]


def problems_of(path: Path) -> list[str]:
    paragraphs = page_paragraphs if path.suffix == ".md" else module_paragraphs
    return problems(paragraphs(path.read_text()))


def check(files: list[Path]) -> list[str]:
    """Return a line for each problem."""
    return [f"{path.relative_to(ROOT)}: {problem}" for path in files for problem in problems_of(path)]


def main(names: list[str]) -> int:
    lines = check([Path(name).resolve() for name in names] or checked_files())
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
