import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.prefixed_settings import SettingPrefix
from spark_kafkalite.settings import Kind, Setting, SettingGroup, property_name, read_properties
from tests import canary

GROUP = SettingGroup(
    "broker",
    (
        Setting("broker.id", "int", 1, "The broker's number.", minimum=0, synonyms=("node.id", "id")),
        Setting("log.retention.ms", "long", 604_800_000, "How long.", unit="ms", minimum=-1),
        Setting("log.flush.ratio", "double", 0.5, "A share.", minimum=0, maximum=1),
        Setting("auto.create.topics.enable", "boolean", True, "Whether."),
        Setting("cleanup.policy", "list", ("delete",), "What to do.", choices=("delete", "compact")),
        Setting("compression.type", "string", "producer", "Codec.", choices=("producer", "gzip")),
        Setting("secret", "password", None, "A secret."),
        Setting("rack", "string", None, "Where it stands."),
    ),
)


IN_PARTS = SettingGroup(
    "broker",
    (
        Setting("ssl.keystore.location", "string", None, "A file."),
        Setting("ssl.client.auth", "string", "none", "Whether.", choices=("none", "required")),
        Setting("log.dirs", "list", ("data",), "Where."),
    ),
    prefix=SettingPrefix(
        "listener.name.",
        "listener",
        frozenset({"ssl.keystore.location", "ssl.client.auth"}),
        frozenset({"ssl.keystore.location"}),
    ),
)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("broker.id", " 7 ", 7),
        ("broker.id", "+7", 7),
        ("broker.id", 7, 7),
        ("log.retention.ms", "-1", -1),
        ("log.flush.ratio", "0.25", 0.25),
        ("log.flush.ratio", "1e-3", 0.001),
        ("log.flush.ratio", 1, 1.0),
        ("auto.create.topics.enable", " TRUE ", True),
        ("auto.create.topics.enable", False, False),
        ("cleanup.policy", "compact, delete,", ("compact", "delete")),
        ("cleanup.policy", ["compact"], ("compact",)),
        ("cleanup.policy", "", ()),
        ("compression.type", " gzip ", "gzip"),
        ("secret", " keeps inner blanks\n", "keeps inner blanks"),
        ("rack", True, "true"),
    ],
)
def test_text_and_python_values_become_checked_values(name: str, raw: object, value: object) -> None:
    parsed = GROUP.parse({name: raw})[name]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "complaint"),
    [
        ("broker.id", "seven", "broker.id='seven': not a valid int; give a whole number, at least 0"),
        ("broker.id", "1_000", "not a valid int"),
        ("broker.id", "\u0667", "not a valid int"),  # a seven in Arabic-Indic digits
        ("broker.id", "1.0", "not a valid int"),
        ("broker.id", 1.0, "not a valid int"),
        ("broker.id", True, "not a valid int"),
        ("broker.id", "", "not a valid int"),
        ("broker.id", "-1", "broker.id=-1: must be at least 0"),
        ("broker.id", str(2**31), "outside the range of the type int, -2147483648 to 2147483647"),
        ("log.retention.ms", str(2**63), "outside the range of the type long"),
        ("log.retention.ms", "abc", "not a valid long; give a whole number of ms, at least -1"),
        ("log.retention.ms", -2, "must be at least -1"),
        ("log.flush.ratio", "nan", "not a valid double; give a number, at least 0, at most 1"),
        ("log.flush.ratio", float("inf"), "not a valid double"),
        ("log.flush.ratio", "1e999", "not a valid double"),
        ("log.flush.ratio", "1.5", "log.flush.ratio=1.5: must be at most 1"),
        ("auto.create.topics.enable", "yes", "not a valid boolean; give true or false"),
        ("auto.create.topics.enable", 1, "not a valid boolean"),
        ("cleanup.policy", "delete,burn", "cleanup.policy=burn: must be one of delete, compact"),
        ("cleanup.policy", 5, "not a valid list"),
        ("compression.type", "brotli", "must be one of producer, gzip"),
    ],
)
def test_a_bad_value_is_named_with_its_bound(name: str, raw: object, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GROUP.parse({name: raw})
    assert complaint in str(raised.value)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("broker.id", "seven", "Invalid value seven for configuration broker.id: Not a number of type INT"),
        ("broker.id", "-1", "Invalid value -1 for configuration broker.id: Value must be at least 0"),
        ("log.flush.ratio", "1.5", "Invalid value 1.5 for configuration log.flush.ratio: Value must be no more than 1"),
        ("auto.create.topics.enable", "yes", "auto.create.topics.enable: Expected value to be either true or false"),
        (
            "cleanup.policy",
            "delete,burn",
            "Invalid value burn for configuration cleanup.policy: String must be one of: ",
        ),
        ("log.retention.sm", "1", "Unknown broker config name: log.retention.sm; did you mean 'log.retention.ms'?"),
    ],
)
def test_answers_say_it_in_kafkas_words(name: str, raw: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GROUP.parse({name: raw})
    assert words in raised.value.kafka_text
    assert pickle.loads(pickle.dumps(raised.value)).kafka_text == raised.value.kafka_text


def test_a_secret_stays_one_in_kafkas_words() -> None:
    with pytest.raises(ConfigError) as raised:
        Setting("secret", "password", None, "Not to be seen.").parse(None)
    assert raised.value.kafka_text.startswith("Invalid value [hidden] for configuration secret: ")


@given(st.sampled_from([setting.name for setting in GROUP]), st.text() | st.integers() | st.floats() | st.none())
def test_anything_is_either_a_value_or_a_config_error(name: str, raw: object) -> None:
    try:
        parsed = GROUP.parse({name: raw})
    except ConfigError:
        return
    for value in parsed.values():
        assert GROUP[name].parse(GROUP[name].text(value)) == value


def test_an_unknown_name_brings_up_the_nearest_known_one() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown broker setting 'log\.retention\.sm'; did you mean 'log\.retention\.ms'"
    ):
        GROUP.parse({"log.retention.sm": 5})
    with pytest.raises(ConfigError, match=r"unknown broker setting 'zzz'$"):
        GROUP.parse({"zzz": 5})
    assert GROUP.unknown(["zzz", "node.id", "rack"]) == ["zzz"]


def test_all_unknown_names_are_in_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        GROUP.parse({"log.retention.sm": 5, "node.id": 1, "zzz": 5, "yyy": 1})
    assert str(raised.value) == (
        "3 unknown broker settings: 'log.retention.sm' (did you mean 'log.retention.ms'?); 'zzz', 'yyy'"
    )
    assert "config name: log.retention.sm" in raised.value.kafka_text
    assert "config name: zzz" in raised.value.kafka_text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"node.id": 5}, 5),
        ({"broker.id": 3, "node.id": 5}, 3),
        ({"node.id": 5, "broker.id": 3}, 3),
        ({"node.id": 5, "id": 6}, 6),
        ({"broker.id": None, "node.id": 5}, 5),
    ],
)
def test_synonyms(raw: dict[str, object], expected: int) -> None:
    assert GROUP.parse(raw) == {"broker.id": expected}
    assert "node.id" in GROUP
    assert GROUP["node.id"] is GROUP["broker.id"]


def test_a_value_that_does_not_count_is_checked_all_the_same() -> None:
    with pytest.raises(ConfigError, match="not a valid int"):
        GROUP.parse({"broker.id": 3, "node.id": "x"})


def test_none_means_not_given() -> None:
    assert GROUP.parse({"rack": None, "broker.id": None}) == {}


def test_defaults_pass_their_own_checks() -> None:
    defaults = GROUP.defaults()
    assert list(defaults) == [setting.name for setting in GROUP]
    assert GROUP.parse(defaults) == {name: value for name, value in defaults.items() if value is not None}


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (("a", "b"), "a,b"), ((), ""), (5, "5"), (0.5, "0.5"), (None, None)],
)
def test_values_are_written_as_kafka_writes_them(value: object, text: str | None) -> None:
    assert GROUP["rack"].text(value) == text


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", {}),
        ("# a comment\n! another\n\n  a = 1 \n", {"a": "1"}),
        ("a=1\r\nb=2", {"a": "1", "b": "2"}),
        ("a=x=y#z\n", {"a": "x=y#z"}),
        ("a=\n", {"a": ""}),
        ("a=1\na=2\n", {"a": "2"}),
        ("a=1,\\\n   2,\\\n   3\nb=4\n", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n# is part of it\n", {"a": "1# is part of it"}),
        ("a=1\\\n\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\\\nb=2\n", {"a": "1\\", "b": "2"}),
        ("\\\n# goes on\n", {"#": "goes on"}),
        ("a:1\nb 2\nc\t=\t3\nd  :  4\ne = = 5\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "= 5"}),
        ("a\\=b\\:c\\ d=1\n", {"a=b:c d": "1"}),
        ("a=\\#\\!\\=\\:\\x#b # c\n", {"a": "#!=:x#b # c"}),
        ("a=x\\ty\\nz\\rw\\fv\n", {"a": "x\ty\nz\rw\fv"}),
        ("a=\\u00e9\\ud83d\\ude00\u00e9\n", {"a": "\u00e9\U0001f600\u00e9"}),
        ("a=C:\\\\temp\\\\pw\n", {"a": "C:\\temp\\pw"}),
        ("a=1\rb=2\r\nc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\u2028b=2\x0b\n", {"a": "1\u2028b=2"}),
        ("a=  b \t\f\n", {"a": "b"}),
        ("a=\\ b\\ \n", {"a": "b"}),
        (
            'j=x.M required username="a" \\\n    password="p\\\\"q";\n',
            {"j": 'x.M required username="a" password="p\\"q";'},
        ),
        ("\ufeffa=1\n", {"a": "1"}),
    ],
)
def test_properties_files(tmp_path: Path, content: str, expected: dict[str, str]) -> None:
    assert read_properties(write(tmp_path / "a.properties", content)) == expected


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a=1\nbroken\n", "line 2: not of the form name=value"),
        ("=1\n", "line 1: not of the form name=value"),
        ("a=1\\\n2\nb=\\u12g4\n", "line 3: \\u must be followed by four hexadecimal digits"),
        ("a=\\u12", "line 1: \\u must be followed by four hexadecimal digits"),
        (b"a=\xff\n", "is not UTF-8 text (byte 2)"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    path = write(tmp_path / "a.properties", content)
    with pytest.raises(ConfigError) as raised:
        read_properties(path)
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("form", ["a=1\n{}\n", "={}", "a=\\uxx{}", "a=\xff{}"])
@pytest.mark.parametrize("secret", [canary.CLIENT_SECRET, canary.TOKEN])
def test_a_broken_file_shows_nothing_of_its_secrets(tmp_path: Path, form: str, secret: str) -> None:
    content = form.format(secret).encode("latin-1")
    with pytest.raises(ConfigError) as raised:
        read_properties(write(tmp_path / "a.properties", content))
    assert [leak for text in canary.exception_texts(raised.value) for leak in canary.leaks(text)] == []


@pytest.mark.parametrize("kind", ["string", "password"])
def test_white_space_around_a_text_is_no_part_of_it(kind: Kind) -> None:
    assert Setting("a", kind, None, "").parse(" x y\n") == "x y"


def test_a_missing_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.properties: No such file"):
        read_properties(tmp_path / "none.properties")


def test_keyword_arguments_have_kafkas_names() -> None:
    assert property_name("bootstrap_servers") == "bootstrap.servers"
    assert property_name("acks") == "acks"


def test_a_setting_is_given_for_a_part_under_its_prefix() -> None:
    name = "listener.name.In.Side.ssl.client.auth"
    assert IN_PARTS.parse({name: "required"}) == {"listener.name.in.side.ssl.client.auth": "required"}
    assert IN_PARTS.part_of(name) == "in.side"
    assert IN_PARTS.part_of("ssl.client.auth") is None
    assert name in IN_PARTS
    # The value for all stands in for it, so it has no default.
    assert IN_PARTS[name].default is None
    assert IN_PARTS["listener.name.in.ssl.keystore.location"].dynamic
    assert not IN_PARTS[name].dynamic
    assert not IN_PARTS["ssl.keystore.location"].dynamic


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        (
            "listener.name.inner.ssl.keystore.locaton",
            "f",
            r"unknown .* did you mean 'listener\.name\.inner\.ssl\.keystore\.location'\?",
        ),
        ("listener.name.inner.log.dirs", "d", "log.dirs is one value for all, and cannot be given for one listener"),
        ("listener.name.ssl.client.auth", "none", r"unknown broker setting 'listener.name.ssl.client.auth'"),
        ("listener.name.inner.zzz", "d", r"unknown broker setting 'listener.name.inner.zzz'$"),
        ("listener.name.inner.ssl.client.auth", "maybe", "listener.name.inner.ssl.client.auth=maybe: must be one of"),
    ],
)
def test_a_mistake_under_a_prefix_is_named(name: str, raw: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IN_PARTS.parse({name: raw})


@pytest.mark.parametrize("kind", ["list", "int"])
def test_of_a_long_bad_value_the_start_is_shown_and_what_is_wrong(kind: Kind) -> None:
    setting = Setting("replicas", kind, None, "", form=("[0-9]", "a digit"))
    _, problems = SettingGroup("topic", (setting,)).parse_usable({"replicas": "0:1," * 125_000})
    (problem,) = problems
    assert "replicas=" in problem and "0:1,0:1," in problem
    assert problem.endswith("a digit" if kind == "list" else "give a whole number")
    assert len(problem) < 1000
