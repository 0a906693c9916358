"""How a Kerberos principal becomes a user: ``sasl.kerberos.principal.to.local.rules``.

The setting is a list of ``DEFAULT`` and ``RULE:[N:FORMAT](MATCH)s/PATTERN/REPLACEMENT/g/L``, with commas; the first
rule that fits counts. ``N`` is how many parts the principal has before its realm, ``$0`` in FORMAT the realm, ``$1``
and ``$2`` the parts. MATCH is a regular expression for the whole of what FORMAT makes. ``s/../../`` replaces in it the
first match of PATTERN, with ``g`` all of them; L and U make lower and upper case. All but ``[N:FORMAT]`` may be left
out. DEFAULT takes the first part of a principal of the default realm.

Patterns are Python's, which differ from Java's in rare forms. Source:
org.apache.kafka.common.security.kerberos.KerberosShortNamer, KerberosRule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.errors import ConfigError

SETTING: Final = "sasl.kerberos.principal.to.local.rules"

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:\[(?P<count>\d+):(?P<format>[^\]]*)\]"
    r"(?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<all>g?))?"
    r"/?(?P<case>[LU]?))\s*(?:,|$)"
)
_PRINCIPAL: Final = re.compile(r"(?P<first>[^/@]+)(?:/(?P<second>[^/@]+))?@(?P<realm>[^/@]+)")
_PART: Final = re.compile(r"\$(\d+)")
# In a replacement: a group, or a character that is itself.
_GROUP: Final = re.compile(r"\$(?P<number>\d)|\\(?P<literal>.)", re.DOTALL)
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}
_NOT_LOCAL: Final = re.compile(r"[/@]")


@dataclass(frozen=True, slots=True)
class _NameRule:
    """``form`` is None for DEFAULT; ``match`` and ``pattern`` are None where a rule has none."""

    count: int = 0
    form: str | None = None
    match: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    replaces_all: bool = False
    case: str = ""

    def apply(self, parts: list[str], default_realm: str) -> str | None:
        """Return the name for a realm and the parts behind it; None if the rule does not fit."""
        if self.form is None:
            return parts[1] if parts[0] == default_realm else None
        if len(parts) - 1 != self.count:
            return None
        name = _PART.sub(lambda found: parts[int(found[1])], self.form)
        if self.match is not None and self.match.fullmatch(name) is None:
            return None
        if self.pattern is not None:
            name = self.pattern.sub(self._replaced, name, 0 if self.replaces_all else 1)
        return _CASES[self.case](name)

    def _replaced(self, match: re.Match[str]) -> str:
        return _GROUP.sub(lambda found: found["literal"] or match[int(found["number"])] or "", self.replacement)


class LocalNames:
    """The rules of one listener."""

    def __init__(self, text: str, default_realm: str) -> None:
        """Raises ConfigError for a text that is no list of rules."""
        self._default_realm = default_realm
        self._rules: list[_NameRule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ConfigError(
                    f"{SETTING}={text}: what begins at {text[at : at + 40]!r} is not a rule; give DEFAULT or "
                    "RULE:[N:FORMAT](MATCH)s/PATTERN/REPLACEMENT/, with commas"
                )
            self._rules.append(_NameRule() if found["default"] else _rule(found))
            at = found.end()
        if not self._rules:
            self._rules.append(_NameRule())

    def name_of(self, principal: str) -> str | None:
        """Return the user of a principal, None if no rule fits it, or if what fits first has ``/`` or ``@`` in it."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            return None
        parts = [found["realm"], found["first"], *([found["second"]] if found["second"] else [])]
        for rule in self._rules:
            name = rule.apply(parts, self._default_realm)
            if name is not None:
                return None if not name or _NOT_LOCAL.search(name) else name
        return None


def _rule(found: re.Match[str]) -> _NameRule:
    count, form, shown = int(found["count"]), found["format"], found[0].strip(", ")
    if count not in (1, 2):
        raise ConfigError(f"{SETTING}: {shown}: a principal has 1 or 2 parts before its realm, and never {count}")
    if any(int(each) > count for each in _PART.findall(form)):
        raise ConfigError(f"{SETTING}: {shown}: the format names a part beyond ${count}")
    match, pattern = _compiled(found["match"], shown), _compiled(found["pattern"], shown)
    numbers = [int(each["number"]) for each in _GROUP.finditer(found["replacement"] or "") if each["number"]]
    if pattern is not None and any(number > pattern.groups for number in numbers):
        raise ConfigError(f"{SETTING}: {shown}: the replacement names a group that the pattern does not have")
    return _NameRule(count, form, match, pattern, found["replacement"] or "", bool(found["all"]), found["case"])


def _compiled(text: str | None, shown: str) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{SETTING}: {shown}: the pattern {text} cannot be used: {error}") from None
