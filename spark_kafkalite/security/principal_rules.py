"""How the subject of a client's certificate becomes a principal: ``ssl.principal.mapping.rules``.

The setting is a list of ``DEFAULT`` and ``RULE:PATTERN/REPLACEMENT/[LU]``, with commas. The first pattern that matches
the whole subject gives the principal's name; ``$1`` in the replacement is its first group, L and U make the name lower
or upper case. DEFAULT takes the subject as it is. A pattern may have ``\\/`` and commas.

Patterns are Python's, which differ from Java's in rare forms (``\\p{..}``): such a rule is refused. Source:
org.apache.kafka.common.security.ssl.SslPrincipalMapper.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.errors import ConfigError

SETTING: Final = "ssl.principal.mapping.rules"

_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>{_PART})/(?P<replacement>{_PART})/(?P<case>[LU]?))\s*(?:,|$)"
)
# What stands for a group in a replacement, and a character that is itself.
_REFERENCE: Final = re.compile(r"\$(?:(?P<number>\d+)|\{(?P<name>\w+)\})|\\(?P<literal>.)", re.DOTALL)
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


@dataclass(frozen=True, slots=True)
class _Rule:
    """``pattern`` is None for DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """Return the name for a subject; None if the rule does not match it."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        return _CASES[self.case](self.pattern.sub(self._replaced, subject))

    def _replaced(self, match: re.Match[str]) -> str:
        def referred(reference: re.Match[str]) -> str:
            if reference["literal"] is not None:
                return reference["literal"]
            if reference["name"] is not None:
                return match[reference["name"]] or ""
            # Java takes as many digits as make the number of a group that exists, and one at least.
            digits, rest = reference["number"], ""
            while len(digits) > 1 and int(digits) > match.re.groups:
                digits, rest = digits[:-1], digits[-1] + rest
            if int(digits) > match.re.groups:
                return reference[0]
            return (match[int(digits)] or "") + rest

        return _REFERENCE.sub(referred, self.replacement)


class PrincipalRules:
    """The rules of one listener."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError for text that is no list of rules."""
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            match = _RULE.match(text, at)
            if match is None:
                raise ConfigError(
                    f"{SETTING}={text}: what begins at {text[at : at + 40]!r} is not a rule; give DEFAULT or "
                    "RULE:PATTERN/REPLACEMENT/[LU], with commas"
                )
            self._rules.append(_Rule() if match["default"] else _rule(match))
            at = match.end()
        if not self._rules:
            self._rules.append(_Rule())

    def name_of(self, subject: str) -> str | None:
        """Return the name of the principal with this subject; None without a rule that matches, or with none left."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name or None
        return None


def _rule(match: re.Match[str]) -> _Rule:
    pattern, replacement = match["pattern"], match["replacement"]
    try:
        # A group's name is written in another way in Java.
        compiled = re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern))
    except re.error as error:
        raise ConfigError(f"{SETTING}: the pattern of RULE:{pattern}/ cannot be used: {error}") from None
    for reference in _REFERENCE.finditer(replacement):
        name = reference["name"]
        if name is not None and name not in compiled.groupindex:
            raise ConfigError(f"{SETTING}: RULE:{pattern}/ has no group {name!r}, which its replacement names")
    return _Rule(compiled, replacement, match["case"])
