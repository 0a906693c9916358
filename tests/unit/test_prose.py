"""The check of the English in pages and messages finds what it is for, and holds its list of files to get shorter."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.paths import PROJECT

PROSE: dict[str, Any] = runpy.run_path(str(PROJECT / "scripts" / "check_prose.py"))


def of_page(text: str) -> list[str]:
    found: list[str] = PROSE["problems"](PROSE["page_paragraphs"](text))
    return found


def of_module(text: str) -> list[str]:
    found: list[str] = PROSE["problems"](PROSE["module_paragraphs"](text))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "The page says how.",
        "A client that is told of it waits.",
        "It is the operator's business.",
        "Read it anew.",
        "| a cell | whoever asks |",
        "- an item\n- another one that looks at it",
        f"One sentence with {'many ' * 40}words.",
    ],
)
def test_a_word_of_the_list_and_a_long_sentence_are_found(text: str) -> None:
    assert len(of_page(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The page describes how. Whose log is it? The bearer of `who says` is new.",
        "```console\n$ echo anew\n```",
        "See [the page](who.md).",
        f"{'Many words. ' * 40}",
        f"- {'one item ' * 15}\n- {'one item ' * 15}",
        f"| {'a cell ' * 15} | {'a cell ' * 15} |",
    ],
)
def test_plain_prose_code_and_short_sentences_pass(text: str) -> None:
    assert of_page(text) == []


def test_docstrings_and_messages_of_a_module_are_checked_and_names_are_not() -> None:
    assert len(of_module('"""Serve whoever has it first."""\n')) == 1
    assert len(of_module('raise ValueError(f"the broker {name} told nothing to {other}")\n')) == 1
    assert of_module('who = {"told": "anew"}  # who says so\n') == []


def test_a_file_leaves_the_list_when_it_is_clean_and_cannot_join_it_unseen() -> None:
    clean, unclean = PROJECT / "scripts" / "check_prose.py", PROJECT / "tests" / "unit" / "test_prose.py"
    plain = PROSE["check"].__globals__
    plain["problems_of"] = lambda path: ["'anew' in: anew"] if path == unclean else []
    assert PROSE["check"]([clean, unclean], {"tests/unit/test_prose.py"}) == []
    assert PROSE["check"]([unclean], set()) == ["tests/unit/test_prose.py: 'anew' in: anew"]
    (line,) = PROSE["check"]([clean], {"scripts/check_prose.py"})
    assert line == "scripts/check_prose.py is clean: remove it from scripts/prose_not_clean.txt"
    assert PROSE["check"]([], {"gone.md"}) == ["gone.md does not exist: remove it from the list"]
