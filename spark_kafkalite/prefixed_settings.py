"""Settings that may also be given for one part of a whole: ``listener.name.internal.ssl.keystore.location``.

A name of this kind has a prefix, the part's name, and the name of a declared setting. A part's name may have dots, so
the split looks for the longest declared name at the end.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

# How similar a name must be to be what was meant: another one may do harm.
SIMILAR: Final = 0.75


@dataclass(frozen=True, slots=True)
class SettingPrefix:
    """The names that begin with ``text``.

    ``part`` is a word for what a part is, for texts. ``settings`` are the names that may follow a part's name,
    ``dynamic`` those of them that may be changed for a part of a running broker.
    """

    text: str
    part: str
    settings: frozenset[str] = field(repr=False)
    dynamic: frozenset[str] = field(default=frozenset(), repr=False)

    def split(self, name: str) -> tuple[str, str] | None:
        """Return the part's name in lower case and the setting's name; None for a name that is not of this kind."""
        for part, setting in self._splits(name):
            if setting in self.settings:
                return part, setting
        return None

    def join(self, part: str, setting: str) -> str:
        """Return the name of a part's setting."""
        return f"{self.text}{part.lower()}.{setting}"

    def nearest(self, name: str) -> str | None:
        """Return the most similar name of this kind for the same part; None without a similar one."""
        import difflib  # for mistakes only: a broker starts without it

        best, ratio = None, SIMILAR
        for part, setting in self._splits(name):
            for near in difflib.get_close_matches(setting, self.settings, n=1, cutoff=ratio):
                best, ratio = self.join(part, near), difflib.SequenceMatcher(None, near, setting).ratio()
        return best

    def refused(self, name: str, known: Container[str]) -> str | None:
        """Return the setting in ``name`` that is one of ``known``, and that no part has of its own; None without."""
        return next((setting for _, setting in self._splits(name) if setting in known), None)

    def _splits(self, name: str) -> list[tuple[str, str]]:
        """Return all ways to split a name, those with the longest setting first; none without the prefix."""
        if not name.startswith(self.text):
            return []
        words = name[len(self.text) :].split(".")
        return [
            (".".join(words[:number]).lower(), ".".join(words[number:]))
            for number in range(1, len(words))
            if words[0] and words[number]
        ]
