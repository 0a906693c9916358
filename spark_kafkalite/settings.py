"""How a setting is declared once, and read from files, mappings and options.

A :class:`Setting` has a name in Kafka's spelling, a type, a default, bounds, a unit and a text; a :class:`SettingGroup`
is the list of one kind (broker, topic, producer, consumer, ...) and turns raw text into checked values. Defaults,
``docs/configuration.md``, DescribeConfigs and error messages all come from the same declaration.

What an unknown name means is the caller's to choose: an error that names the nearest known one (broker, Spark), or a
warning (clients).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spark_kafkalite.errors import ConfigError

Kind = Literal["boolean", "int", "long", "double", "string", "list", "password"]

_INTEGER_RANGE = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    ``default`` is the parsed value (a tuple for a list); None means "not set". ``minimum`` and ``maximum`` are
    inclusive. ``choices`` bounds a string, or each item of a list. ``unit`` is for the reader ("ms", "bytes").
    ``synonyms`` are further names under which a user may give it; the first name given wins over them.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    synonyms: tuple[str, ...] = ()

    def parse(self, raw: object) -> Any:
        """Return the checked value of ``raw`` (text, or already a Python value).

        Raises ConfigError naming the setting, the value and the bound.
        """
        try:
            value = self._converted(raw)
        except ValueError:
            raise ConfigError(f"{self.name}={raw!r}: not a valid {self.kind}") from None
        self._check_bounds(value)
        return value

    def _converted(self, raw: object) -> Any:
        if self.kind == "boolean":
            if isinstance(raw, bool):
                return raw
            text = str(raw).strip().lower()
            if text not in ("true", "false"):
                raise ValueError(text)
            return text == "true"
        if self.kind in ("int", "long"):
            if isinstance(raw, bool) or isinstance(raw, float):
                raise ValueError(raw)
            return raw if isinstance(raw, int) else int(str(raw).strip())
        if self.kind == "double":
            return float(str(raw).strip())
        if self.kind == "list":
            items = str(raw).split(",") if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
            return tuple(str(item).strip() for item in items if str(item).strip())
        return str(raw).strip() if self.kind == "string" else str(raw)

    def _check_bounds(self, value: Any) -> None:
        if self.kind in _INTEGER_RANGE:
            lowest, highest = _INTEGER_RANGE[self.kind]
            if not lowest <= value <= highest:
                raise ConfigError(f"{self.name}={value}: outside the range of the type {self.kind}")
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{self.name}={value}: must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{self.name}={value}: must be at most {self.maximum}")
        if self.choices is not None:
            for item in value if self.kind == "list" else (value,):
                if item not in self.choices:
                    raise ConfigError(f"{self.name}={item}: must be one of {', '.join(self.choices)}")

    def text(self, value: Any) -> str | None:
        """Return ``value`` as Kafka writes it in files and answers (booleans lower-case, lists with commas)."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (tuple, list)):
            return ",".join(str(item) for item in value)
        return str(value)


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """All settings of one kind, in the order in which the reference page shows them."""

    title: str
    settings: tuple[Setting, ...]
    _by_name: dict[str, Setting] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {name: setting for setting in self.settings for name in (setting.name, *setting.synonyms)}
        object.__setattr__(self, "_by_name", by_name)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.settings)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Setting:
        return self._by_name[name]

    def defaults(self) -> dict[str, Any]:
        """Return every setting's default under its name."""
        return {setting.name: setting.default for setting in self.settings}

    def parse(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Return the checked values of the settings named in ``raw``, under their main names, without defaults.

        Raises ConfigError for an unknown name (with the nearest known one) or a bad value.
        """
        parsed: dict[str, Any] = {}
        for name, value in raw.items():
            setting = self._by_name.get(name)
            if setting is None:
                raise ConfigError(f"unknown {self.title} setting {name!r}{self.hint(name)}")
            if setting.name not in parsed or name == setting.name:
                parsed[setting.name] = setting.parse(value)
        return parsed

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are not settings of this group."""
        return [name for name in names if name not in self._by_name]

    def hint(self, name: str) -> str:
        """Return '; did you mean ...?' for the nearest known name, or an empty text when none is near."""
        near = difflib.get_close_matches(name, self._by_name, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""


def read_properties(path: Path) -> dict[str, str]:
    """Read a Java-style properties file: ``name=value`` lines, ``#`` and ``!`` comments, ``\\`` joins lines.

    Raises ConfigError naming the file and line for a line without ``=``.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    properties: dict[str, str] = {}
    pending = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = pending + line.strip()
        pending = ""
        if not stripped or stripped[0] in "#!":
            continue
        if stripped.endswith("\\"):
            pending = stripped[:-1]
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError(f"{path}, line {number}: {stripped!r} is not of the form name=value")
        properties[name.strip()] = value.strip()
    return properties


def property_name(keyword: str) -> str:
    """Return the Kafka name of a Python keyword argument: ``bootstrap_servers`` is ``bootstrap.servers``."""
    return keyword.replace("_", ".")
