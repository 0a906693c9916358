from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas

PLAIN = PLAIN_MODULE
SECRET = "canary7Secret"


def options_of(text):
    return dict(parse_jaas(f"{PLAIN} required {text};").options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('username="alice" password="secret"', {"username": "alice", "password": "secret"}),
        ("username=alice password='s=c;r/t'", {"username": "alice", "password": "s=c;r/t"}),
        ("username = alice\n  password\t=\r\n'x'", {"username": "alice", "password": "x"}),
        ('username="a""password"="b"', {"username": "a", "password": "b"}),
        (r'password="a\"b\\c\n\t\q\101\1012\400"', {"password": 'a"b\\c\n\tqAA2 0'}),
        ("password='a\"b'", {"password": 'a"b'}),
        ('password=""', {"password": ""}),
        ("password=pässwörd€", {"password": "pässwörd€"}),
        ("password=a-b_c.d$9", {"password": "a-b_c.d$9"}),
        ("username=a // it's a comment; x=1\n password=b", {"username": "a", "password": "b"}),
        ('username=a / a comment too "\n password=b', {"username": "a", "password": "b"}),
        ('username=a /* over \n lines " */ password=b', {"username": "a", "password": "b"}),
        ("username=a/**/password=b", {"username": "a", "password": "b"}),
        ("password=a password=b", {"password": "b"}),
        ("", {}),
    ],
)
def test_options_are_read_as_java_reads_them(text, options):
    assert options_of(text) == options


@pytest.mark.parametrize("flag", ["required", "REQUIRED", "Requisite", "sufficient", "optional", '"required"'])
def test_every_flag_will_do(flag):
    assert parse_jaas(f"{PLAIN} {flag} username=a ; // the end").module == PLAIN


@pytest.mark.parametrize("prefix", ["kafkashaded.", "shadeio.", "org.example.shaded."])
@pytest.mark.parametrize("module", [PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE])
def test_a_prefix_of_shaded_builds_is_stripped(prefix, module):
    assert parse_jaas(f"{prefix}{module} required;").module == module


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no login module"),
        ("  // nothing\n", "holds no login module"),
        ("; x", "position 1: expected the name of a login module"),
        (PLAIN, "expected a flag after the login module, one of required, "),
        (f"{PLAIN};", "expected a flag"),
        (f"{PLAIN} username=a;", "expected a flag"),
        (f"{PLAIN} required username=a", "does not end with a semicolon"),
        (f"{PLAIN} required password={SECRET}/x=y;", "the semicolon at its end is in a comment, which '/' begins"),
        (
            f"{PLAIN} required username;",
            "position 74: expected '=' after the name of an option that begins at position 66",
        ),
        (f"{PLAIN} required username=;", "position 75: the option username has no value"),
        (f"{PLAIN} required username=", "the option username has no value"),
        (f"{PLAIN} required =a;", "position 66: '=' without the name of an option"),
        (f"{PLAIN} required password={SECRET} {SECRET}=;", "the option has no value"),
        (f"{PLAIN} required password={SECRET}+x;", "a character that is not allowed outside quotes"),
        (f"{PLAIN} required password=9{SECRET};", "cannot begin with a digit"),
        (f'{PLAIN} required password="{SECRET};', "a quote that is not closed"),
        (f"{PLAIN} required password='{SECRET}\n';", "a quote that is not closed"),
        (f"{PLAIN} required password={SECRET}; /* {SECRET}", "a comment that is not closed"),
        (f"{PLAIN} required password={SECRET}; {PLAIN} required;", "one login module only"),
        (f"{PLAIN} required password={SECRET} {SECRET};", "expected '='"),
        (SECRET, "expected a flag"),
        (f"{SECRET} required;", "does not begin with the name of a login module's class"),
    ],
)
def test_a_text_that_is_not_of_the_form_is_told_where_and_without_its_values(text, problem):
    with pytest.raises(ConfigError) as caught:
        parse_jaas(text)
    assert str(caught.value).startswith("sasl.jaas.config: ")
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("com.ibm.security.auth.module.Krb5LoginModule", "is not supported; supported are"),
        ("software.amazon.msk.auth.iam.IAMLoginModule", "sasl.mechanism=OAUTHBEARER with sasl.token.provider="),
        ("com.sun.security.auth.module.JndiLoginModule", "JndiLoginModule is not supported; supported are"),
        ("org.apache.kafka.common.security.plain.PlainLoginModuleX", "is not supported"),
        ("org.example.PlainLoginModule", "is not supported"),
    ],
)
def test_other_modules_are_refused_by_name(module, remedy):
    with pytest.raises(ConfigError) as caught:
        parse_jaas(f'{module} required useTicketCache=true password="{SECRET}";')
    assert module in str(caught.value) and remedy in str(caught.value)
    assert SECRET not in str(caught.value)


def test_its_text_has_no_values():
    entry = parse_jaas(f'{PLAIN} required username=a password="{SECRET}";')
    assert repr(entry) == "JaasEntry(PlainLoginModule)"


# Pieces of the grammar, so that chance gets beyond the first word.
pieces = st.sampled_from(
    [
        *(
            PLAIN,
            SCRAM_MODULE,
            f"{PLAIN} required ",
            "required",
            "username",
            "password",
            '"x y"',
            "'\\''",
            "//",
            "/*",
            "*/",
        ),
        *" \n=;\"'\\/*a7-.é\x85\0",
    ]
)


@given(st.one_of(st.lists(pieces, max_size=25).map("".join), st.text(max_size=200)))
def test_any_text_gives_an_entry_or_a_config_error(text):
    try:
        entry = parse_jaas(text)
    except ConfigError:
        return
    assert entry.module in (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE)


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), st.text(), max_size=4))
def test_quoted_values_come_back_as_they_were(options):
    def quoted(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
        return f'"{escaped}"'

    assert options_of(" ".join(f"{name}={quoted(value)}" for name, value in options.items())) == options
