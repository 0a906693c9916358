"""The check of the English in pages and messages finds what it is for."""

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


def test_each_problem_is_named_with_its_file() -> None:
    plain = PROSE["check"].__globals__
    plain["problems_of"] = lambda path: ["'anew' in: anew"] if path.name == "README.md" else []
    assert PROSE["check"]([PROJECT / "README.md", PROJECT / "CONTRIBUTING.md"]) == ["README.md: 'anew' in: anew"]
