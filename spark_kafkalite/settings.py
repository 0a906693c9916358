"""How a setting is declared once, and read from files, mappings and options.

A :class:`Setting` has a name in Kafka's spelling, a type, a default, bounds, a unit and a text; a :class:`SettingGroup`
is the list of one kind (broker, topic, producer, consumer, ...) and turns raw text into checked values. Defaults,
``docs/configuration.md``, DescribeConfigs and error messages all come from the same declaration.

What an unknown name means is the caller's to choose: an error that names the nearest known one (broker, Spark), or a
warning (clients).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.prefixed_settings import SIMILAR, SettingPrefix
from spark_kafkalite.redaction import REDACTED, ShownSettings, is_key_or_token, is_secret, shown_name, shown_value

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["boolean", "int", "long", "double", "string", "list", "password"]

# Python's int() and float() also take "1_000", digits of other scripts and "nan"; Java's parsers, whose files these
# are, do not.
_INTEGER_TEXT = r"[+-]?[0-9]+"
_DOUBLE_TEXT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
# What Kafka says of text that is none of the kind; of numbers it names the type.
_EXPECTED = {"boolean": "Expected value to be either true or false", "list": "Expected a comma separated list."}
# What Java's properties files are made of: white space, escapes, and a name up to the first separator.
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY = r"(?s)(?P<name>(?:\\.|[^\\ \t\f=:])*)(?P<separator>[ \t\f]*[=:]|[ \t\f]+|)[ \t\f]*(?P<value>.*)"

_INTEGER_RANGE = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    ``default`` is the parsed value (a tuple for a list); None means "not set". ``minimum`` and ``maximum`` are
    inclusive. ``choices`` bounds a string, or each item of a list, which then holds each once. ``form`` is a regular
    expression for the whole text, and its description for the reader. ``unit`` is for the reader ("ms", "bytes").
    ``synonyms`` are further names under which a user may give it; given under several names, the main name's value
    counts, else that of the synonym given last. ``elsewhere`` are names of the same setting in other clients: errors
    recognise them, but they have no effect. ``dynamic`` means that a running broker takes changes of it.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    form: tuple[str, str] | None = None
    synonyms: tuple[str, ...] = ()
    dynamic: bool = False
    elsewhere: tuple[str, ...] = ()

    def parse(self, raw: object) -> Any:
        """Return the checked value of ``raw`` (text, or already a Python value).

        Raises ConfigError naming the setting, the value and the bound.
        """
        try:
            value = self._converted(raw)
        except (ValueError, TypeError):
            expected = _EXPECTED.get(self.kind) or f"Not a number of type {self.kind.upper()}"
            raise ConfigError(
                f"{self.name}={self._shown(raw, repr(raw))}: not a valid {self.kind}{self._remedy()}",
                self._kafka_text(raw, expected),
            ) from None
        if self.kind in ("string", "list") and is_key_or_token(str(raw)):
            # Whatever is done with such a value, it is not treated as a secret.
            problem = "looks like a key, a token or a JAAS entry, which this setting does not take"
            raise ConfigError(f"{self.name}={REDACTED}: {problem}", self._kafka_text(raw, problem))
        self._check_bounds(value)
        return value

    def _remedy(self) -> str:
        """Return what to give instead of text that is not of the setting's kind."""
        if self.kind == "boolean":
            return "; give true or false"
        if self.kind in ("string", "password"):
            return "; give text"
        if self.kind not in ("int", "long", "double"):
            return ""
        number = "a number" if self.kind == "double" else "a whole number"
        unit = f" of {self.unit}" if self.unit else ""
        least = f", at least {self.minimum}" if self.minimum is not None else ""
        most = f", at most {self.maximum}" if self.maximum is not None else ""
        return f"; give {number}{unit}{least}{most}"

    def _converted(self, raw: object) -> Any:
        if raw is None:
            raise ValueError(raw)
        if self.kind == "boolean":
            if isinstance(raw, bool):
                return raw
            text = str(raw).strip().lower()
            if text not in ("true", "false"):
                raise ValueError
            return text == "true"
        if self.kind in ("int", "long"):
            return raw if isinstance(raw, int) and not isinstance(raw, bool) else int(_matching(_INTEGER_TEXT, raw))
        if self.kind == "double":
            value = float(raw) if isinstance(raw, (int, float)) and not isinstance(raw, bool) else None
            value = float(_matching(_DOUBLE_TEXT, raw)) if value is None else value
            if not math.isfinite(value):  # comparisons with nan are all false, so it would pass any bound
                raise ValueError(raw)
            return value
        if self.kind == "list":
            items = raw.split(",") if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
            kept = [str(item).strip() for item in items if str(item).strip()]
            return tuple(kept if self.choices is None else dict.fromkeys(kept))
        if isinstance(raw, (bytes, bytearray, list, tuple, set, dict)):
            raise TypeError
        # A password, too, begins and ends with what is no white space (org.apache.kafka.common.config.ConfigDef): a
        # file that holds one ends in a line break.
        return (("true" if raw else "false") if isinstance(raw, bool) else str(raw)).strip()

    def _check_bounds(self, value: Any) -> None:
        if self.kind in _INTEGER_RANGE:
            lowest, highest = _INTEGER_RANGE[self.kind]
            if not lowest <= value <= highest:
                raise ConfigError(
                    f"{self.name}={value}: outside the range of the type {self.kind}, {lowest} to {highest}",
                    self._kafka_text(value, f"Not a number of type {self.kind.upper()}"),
                )
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(
                f"{self.name}={value}: must be at least {self.minimum}",
                self._kafka_text(value, f"Value must be at least {self.minimum}"),
            )
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(
                f"{self.name}={value}: must be at most {self.maximum}",
                self._kafka_text(value, f"Value must be no more than {self.maximum}"),
            )
        if self.choices is not None:
            for item in value if self.kind == "list" else (value,):
                if item not in self.choices:
                    choices = ", ".join(self.choices)
                    raise ConfigError(
                        f"{self.name}={self._shown(item)}: must be one of "
                        f"{', '.join(choice or '(empty)' for choice in self.choices)}",
                        self._kafka_text(item, f"String must be one of: {choices}"),
                    )
        if self.form is not None:
            pattern, said = self.form
            text = self.text(value) or ""
            if re.fullmatch(pattern, text) is None:
                # As Kafka's validators have it: one for numbers, and one for lists of replicas.
                shown, subject = (f"[{text}]", self.name) if self.kind == "list" else (text, "Value")
                raise ConfigError(
                    f"{self.name}={self._shown(text)}: must be {said}",
                    self._kafka_text(shown, f"{subject} must be {said}"),
                )

    def _shown(self, value: object, text: str | None = None) -> str:
        """Return ``value`` as an error may show it, as ``text`` where that is given; a long one is cut.

        The setting's kind decides whether it is a secret; but a secret may have been given to the wrong setting.
        """
        secret = self.kind == "password" or is_secret("", str(value))
        return REDACTED if secret else shown_value("", value if text is None else text)

    def _kafka_text(self, value: object, problem: str) -> str:
        """Return what is wrong in the words of org.apache.kafka.common.config.ConfigException."""
        shown = "[hidden]" if self._shown(value) == REDACTED else value
        return f"Invalid value {shown} for configuration {self.name}: {problem}"

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
    # Of settings that Apache Kafka has and this group has not: what to know or do instead.
    instead: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Of settings that Apache Kafka has and that may be given here without an effect: why they need none.
    without_effect: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Names under which some of the settings may be given for a part alone. Values under them have no default.
    prefix: SettingPrefix | None = None
    _by_name: dict[str, Setting] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {name: setting for setting in self.settings for name in (setting.name, *setting.synonyms)}
        object.__setattr__(self, "_by_name", by_name)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.settings)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or (self.prefix is not None and self.prefix.split(name) is not None)

    def __getitem__(self, name: str) -> Setting:
        if name in self._by_name or self.prefix is None or (found := self.prefix.split(name)) is None:
            return self._by_name[name]
        part, of_all = found
        own_name, dynamic = self.prefix.join(part, of_all), of_all in self.prefix.dynamic
        setting = self._by_name[of_all]
        return replace(setting, name=own_name, default=None, synonyms=(), elsewhere=(), dynamic=dynamic)

    def part_of(self, name: str) -> str | None:
        """Return the part that a known setting is given for, in lower case; None for a setting of the whole."""
        if self.prefix is None or (found := self.prefix.split(name)) is None:
            return None
        return found[0]

    def defaults(self) -> dict[str, Any]:
        """Return every setting's default under its name."""
        return ShownSettings((setting.name, setting.default) for setting in self.settings)

    def parse(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Return the checked values of the settings named in ``raw``, under their main names, without defaults.

        A value of None means that the setting is not given, as a keyword argument's default does. Settings without
        effect are left out.

        Raises ConfigError for unknown names (all of them, each with the nearest known one) or a bad value.
        """
        unknown = [name for name in self.unknown(raw) if name not in self.without_effect]
        if unknown:
            raise self._unknown_error(unknown)
        parsed: dict[str, Any] = ShownSettings()
        for name, value in raw.items():
            if value is None or name not in self:
                continue
            setting = self[name]
            checked = setting.parse(value)
            if name == setting.name or raw.get(setting.name) is None:
                parsed[setting.name] = checked
        return parsed

    def _unknown_error(self, unknown: Sequence[str]) -> ConfigError:
        names = [(shown_name(name), self.hint(name)) for name in unknown]
        kafka_text = "; ".join(f"Unknown {self.title} config name: {name}{hint}" for name, hint in names)
        if len(names) == 1:
            name, hint = names[0]
            return ConfigError(f"unknown {self.title} setting {name!r}{hint}", kafka_text)
        by_hint: dict[str, list[str]] = {}
        for name, hint in names:
            by_hint.setdefault(hint.lstrip(":; "), []).append(repr(name))
        shown = (", ".join(each) + (f" ({hint})" if hint else "") for hint, each in by_hint.items())
        return ConfigError(f"{len(names)} unknown {self.title} settings: {'; '.join(shown)}", kafka_text)

    def parse_usable(self, raw: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
        """Return what :meth:`parse` would of those settings that are known and right, and what is wrong with others."""
        parsed: dict[str, Any] = {}
        problems = []
        for name, value in raw.items():
            try:
                parsed |= self.parse({name: value})
            except ConfigError as error:
                problems.append(str(error))
        return parsed, problems

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are not settings of this group."""
        return [name for name in names if name not in self]

    def hint(self, name: str) -> str:
        """Return what replaces a setting of Apache Kafka here, else '; did you mean ...?' with the nearest setting, or
        an empty text."""
        if name in self.instead:
            return f": {self.instead[name]}"
        if self.prefix is not None and (refused := self.prefix.refused(name, self._by_name)) is not None:
            return f": {refused} is one value for all, and cannot be given for one {self.prefix.part}"
        near = self.nearest(name)
        return "" if near is None else f"; did you mean {near!r}?"

    def nearest(self, name: str) -> str | None:
        """Return the setting that other clients call so, or else the one of the most similar name; None without."""
        import difflib  # for mistakes only: a broker starts without it

        if self.prefix is not None and name.startswith(self.prefix.text):
            return self.prefix.nearest(name)
        near = [setting.name for setting in self.settings if name in setting.elsewhere]
        near = near or difflib.get_close_matches(name, self._by_name, n=1, cutoff=SIMILAR)
        return near[0] if near else None


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a properties file by the rules of Java's: ``name=value``, ``name: value`` or ``name value`` on each line.

    ``#`` and ``!`` begin a comment. A backslash joins a line with the next, and makes the character behind it an
    ordinary one; ``\\t``, ``\\n``, ``\\r``, ``\\f`` and ``\\uXXXX`` are characters. So a backslash in a password is to
    be doubled, while ``=``, ``:`` and ``#`` in a value need nothing. Unlike Java's the file is UTF-8, not Latin-1.
    White space around a value is dropped: Kafka does so when it parses the value. A name given twice has its last
    value.

    Raises ConfigError naming the file, and the number of a wrong line; it does not show the line's text, which may be a
    secret. Source: java.util.Properties.load.
    """
    text = read_text(path, f"the settings file {path}", encoding="utf-8-sig")
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = re.fullmatch(_PROPERTY, line)
        if match is None or not match["name"] or not match["separator"]:
            raise ConfigError(f"{path}, line {number}: not of the form name=value")
        try:
            properties[_unescaped(match["name"])] = _unescaped(match["value"]).strip()
        except ValueError:
            raise ConfigError(f"{path}, line {number}: \\u must be followed by four hexadecimal digits") from None
    return properties


def read_text(path: str | Path, shown: str, *, encoding: str = "utf-8") -> str:
    """Return the text of a file that may hold secrets. Raises ConfigError calling it ``shown``, with none of them."""
    undecodable: int | None = None
    try:
        with open(path, encoding=encoding) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {shown}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        undecodable = error.start
    # Not raised above, where the error with the file's bytes would hang on to it.
    raise ConfigError(f"{shown} is not UTF-8 text (byte {undecodable})")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with what they are continued by, and the number of their last one; comments and empty ones not."""
    pending: str | None = None
    lines = re.split(r"\r\n|\r|\n", text)
    for number, line in enumerate(lines, start=1):
        piece = line.lstrip(_BLANKS)
        if pending is None and (not piece or piece[0] in "#!"):
            continue
        joined = (pending or "") + piece
        # An even number of them is that many backslashes, halved, not a sign that the line goes on.
        goes_on = (len(joined) - len(joined.rstrip("\\"))) % 2 == 1
        if goes_on:
            joined = joined[:-1]
        if goes_on and number < len(lines):
            pending = joined
            continue
        pending = None
        if joined:
            yield number, joined


def _unescaped(text: str) -> str:
    """Return the text without its backslashes. Raises ValueError for ``\\u`` without four hexadecimal digits."""

    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] != "u":
            return _ESCAPES.get(escaped, escaped)
        if len(escaped) != 5:
            raise ValueError
        return chr(int(escaped[1:], 16))

    unescaped = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL)
    # A character outside the first 65,536 is two of them in Java's files.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def property_name(keyword: str) -> str:
    """Return the Kafka name of a Python keyword argument: ``bootstrap_servers`` is ``bootstrap.servers``."""
    return keyword.replace("_", ".")


def _matching(pattern: str, raw: object) -> str:
    text = str(raw).strip()
    if re.fullmatch(pattern, text) is None:
        raise ValueError  # Without the text, which may be a secret in the wrong place: it is shown by _shown only.
    return text
