"""The text of ``sasl.jaas.config``: one JAAS entry, parsed and never executed.

    MODULE FLAG NAME=VALUE ... ;

The words are those of Java's StreamTokenizer, as org.apache.kafka.common.security.JaasConfig sets it up: letters,
digits, ``.``, ``-``, ``_``, ``$`` and most characters beyond ASCII; anything else goes in double or single quotes,
where a backslash escapes. What Java takes for a number (a word that begins with a digit, ``.`` or ``-``) must be quoted
there, and so it must here. ``//`` and ``/`` begin a comment up to the end of the line, ``/* */`` enclose one.

One rule is stricter than Java's: a line's end inside quotes is an error, and does not end the value.

No error text shows the value of an option, nor any other part of the text that could be one: a forgotten quote turns a
password into option names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from spark_kafkalite.errors import ConfigError

_KAFKA: Final = "org.apache.kafka.common.security."
PLAIN_MODULE: Final = _KAFKA + "plain.PlainLoginModule"
SCRAM_MODULE: Final = _KAFKA + "scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = _KAFKA + "oauthbearer.OAuthBearerLoginModule"

KERBEROS_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"

_MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE, KERBEROS_MODULE)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")

# Java's class for a character is that of its code up to 255; all beyond are letters.
_WORD: Final = r"A-Za-z\xa0-\U0010ffff"
_TOKENS: Final = re.compile(
    rf"""
    (?P<space>     [\x00-\x20]+ | //[^\r\n]* | /\*.*?\*/ | /(?!\*)[^\r\n]* )
  | (?P<word>      [{_WORD}_$][{_WORD}0-9._$-]* )
  | (?P<quoted>    "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' )
  | (?P<mark>      [=;] )
  | (?P<unclosed>  ["'] | /\* )
  | (?P<number>    [0-9.-] )
  | (?P<other>     . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
# What ends a quoted text, begins an escape, or is the end of a line.
_TO_ESCAPE: Final = re.compile(r"[\"\\\r\n]")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# The names of options that an error may show; any other may be half of a value that lacks its quotes.
_SHOWABLE: Final = frozenset(
    {"username", "password", "tokenauth", "clientId", "clientSecret", "scope", "useKeyTab", "keyTab", "principal"}
    | {"useTicketCache", "ticketCache", "storeKey", "serviceName"}
)


class JaasEntry:
    """One entry: the login module, one of the constants above, and its options. Its text has no values."""

    __slots__ = ("module", "options")

    def __init__(self, module: str, options: Mapping[str, str]) -> None:
        self.module = module
        self.options = options

    def __repr__(self) -> str:
        return f"JaasEntry({self.module_name})"

    def with_option(self, name: str, value: str) -> str:
        """Return the text of this entry with another value of an option."""
        options = {**self.options, name: value}
        return f"{self.module} required " + " ".join(f"{each}={_quoted(text)}" for each, text in options.items()) + ";"

    @property
    def module_name(self) -> str:
        """The module's name without its package, as people call it."""
        return self.module.rpartition(".")[2]


def parse_jaas(text: str) -> JaasEntry:
    """Return the one entry that ``text`` consists of.

    Raises ConfigError for a text that is not of the form, with the place, and for a login module that is not supported,
    with what to use instead.
    """
    tokens = _tokens(text)
    kind, name, at = next(tokens)
    if kind == "end":
        raise _wrong('holds no login module; expected: MODULE required NAME="VALUE" ... ;')
    if kind == "mark":
        raise _wrong(f"position {at}: expected the name of a login module, not {name!r}")
    kind, flag, at = next(tokens)
    if kind not in ("word", "quoted") or flag.lower() not in _FLAGS:
        raise _wrong(f"position {at}: expected a flag after the login module, one of {', '.join(_FLAGS)}")
    module = _known_module(name)
    options: dict[str, str] = {}
    while True:
        kind, name, at = next(tokens)
        if kind == "mark" and name == ";":
            break
        if kind == "end":
            if text.rstrip().endswith(";"):
                raise _wrong("the semicolon at its end is in a comment, which '/' begins outside quotes; quote values")
            raise _wrong("does not end with a semicolon")
        if kind == "mark":
            raise _wrong(f"position {at}: '=' without the name of an option before it")
        shown = f" {name}" if name in _SHOWABLE else ""
        kind, mark, at_mark = next(tokens)
        if (kind, mark) != ("mark", "="):
            raise _wrong(
                f"position {at_mark}: expected '=' after the name of an option that begins at position {at}; put "
                "values in quotes"
            )
        kind, value, at_value = next(tokens)
        if kind not in ("word", "quoted"):
            raise _wrong(f"position {at_value}: the option{shown} has no value")
        options[name] = value
    kind, _, at = next(tokens)
    if kind != "end":
        raise _wrong(f"position {at}: text after the semicolon; give one login module only")
    return JaasEntry(module, options)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, position from 1): kind is word, quoted, mark, and end for ever."""
    for match in _TOKENS.finditer(text):
        kind, at = str(match.lastgroup), match.start() + 1
        if kind == "space":
            continue
        if kind == "unclosed":
            what = "a comment" if match.group().startswith("/") else "a quote"
            raise _wrong(f"position {at}: {what} that is not closed")
        if kind == "number":
            raise _wrong(f"position {at}: a bare word cannot begin with a digit, '.' or '-'; put the value in quotes")
        if kind == "other":
            raise _wrong(f"position {at}: a character that is not allowed outside quotes; put the value in quotes")
        yield kind, _unquoted(match.group()) if kind == "quoted" else match.group(), at
    while True:
        yield "end", "", len(text) + 1


def _quoted(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(lambda found: f"\\{ord(found.group()):03o}", text) + '"'


def _unquoted(token: str) -> str:
    return _ESCAPE.sub(_escaped, token[1:-1])


def _escaped(match: re.Match[str]) -> str:
    after = match.group(1)
    if after[0] in "01234567":
        return chr(int(after, 8))
    return _ESCAPED.get(after, after)


def _known_module(name: str) -> str:
    """Return which of the supported modules ``name`` is; builds that carry Kafka's classes put a prefix before them."""
    for module in _MODULES:
        if name == module or name.endswith("." + module):
            return module
    if not re.fullmatch(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)+", name) or len(name) > 200:
        raise _wrong("does not begin with the name of a login module's class")
    if name.endswith(".IAMLoginModule"):
        raise _wrong(f"{name} is not supported: {IAM_REMEDY}")
    raise _wrong(
        f"the login module {name} is not supported; supported are {', '.join(_MODULES)}. For another source of tokens "
        "set sasl.mechanism=OAUTHBEARER and sasl.token.provider=module:function"
    )


IAM_REMEDY: Final = (
    "use sasl.mechanism=OAUTHBEARER with sasl.token.provider=module:function, a Python function that returns the "
    "signer's token and when it expires"
)


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"sasl.jaas.config: {problem}")
