import pytest

from spark_kafkalite.client.registry_consumer.topic_filters import Blacklist, Whitelist
from spark_kafkalite.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("log", ["log"], ["logs", "a-log", "LOG"]),
        ("log.*", ["log", "logs"], ["a-log"]),
        ("a,b", ["a", "b"], ["c", "ab", "a,b"]),
        (' "a , b|c" ', ["a", "b", "c"], ["d"]),
        (r"web\.[a-z]+", ["web.clicks"], ["webXclicks", "web."]),
    ],
)
def test_a_whitelist_lets_whole_names_through_and_a_blacklist_the_others(
    pattern: str, allowed: list[str], refused: list[str]
) -> None:
    for topic in allowed:
        assert Whitelist(pattern).allows(topic) and not Blacklist(pattern).allows(topic)
    for topic in refused:
        assert not Whitelist(pattern).allows(topic) and Blacklist(pattern).allows(topic)


def test_a_pattern_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"topic filter 'a\(' is not a regular expression"):
        Whitelist("a(")


def test_filters_are_values() -> None:
    assert Whitelist("a,b") == Whitelist("a|b") != Blacklist("a|b")
    assert len({Whitelist("a"), Whitelist("a"), Blacklist("a")}) == 2
