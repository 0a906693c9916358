"""Names in a destination: seen by programs, taken by file systems, and different for different topics."""

import random
import string
from urllib.parse import unquote

import pytest

from spark_kafkalite.manifests.names import directory_name, file_name, is_hidden, staged_topic
from spark_kafkalite.model import MAX_TOPIC_NAME_LENGTH, topic_name_problem
from tests.seeds import SEED

LARGEST = 2**63 - 1
CHARACTERS = string.ascii_letters + string.digits + "._-"


def longest_file_name(topic: str, limit: int = 255) -> str:
    return file_name(topic, 2**31 - 1, LARGEST, LARGEST, 999, limit)


@pytest.mark.parametrize(
    ("topic", "directory"),
    [
        ("events", "events"),
        ("5Fschemas", "5Fschemas"),
        ("_schemas", "%5Fschemas"),
        (".hidden", "%2Ehidden"),
        ("__", "%5F_"),
        ("_kafkalite", "%5Fkafkalite"),
        ("a._COPYING_", "a._COPYING%5F"),
        ("._COPYING_", "%2E_COPYING_"),
        ("_" * MAX_TOPIC_NAME_LENGTH, "%5F" + "_" * (MAX_TOPIC_NAME_LENGTH - 1)),
    ],
)
def test_the_directory_is_the_topic_s_name_as_programs_see_it(topic: str, directory: str) -> None:
    assert directory_name(topic) == directory
    assert unquote(directory) == topic
    assert is_hidden(topic) == (directory != topic)


def test_file_names() -> None:
    assert file_name("t", 3, 5, 90) == "t-3-00000000000000000005-00000000000000000090.parquet"
    assert file_name("_t", 3, 5, 90, 2) == "%5Ft-3-00000000000000000005-00000000000000000090-recreated2.parquet"


@pytest.mark.parametrize("limit", [143, 255], ids=["eCryptfs", "usual"])
def test_the_longest_names_fit_and_keep_what_tells_them_apart(limit: int) -> None:
    longest = "x" * MAX_TOPIC_NAME_LENGTH
    name = longest_file_name(longest, limit)
    # `.NAME.crc` is looked for beside it.
    assert len(f".{name}.crc") == limit
    assert name.endswith(f"-2147483647-{LARGEST:020d}-{LARGEST:020d}-recreated999.parquet")
    assert len(directory_name(longest, limit)) == min(limit, MAX_TOPIC_NAME_LENGTH)
    assert longest_file_name("x" * (MAX_TOPIC_NAME_LENGTH - 1) + "y", limit) != name


def test_names_of_different_topics_differ_also_without_regard_to_case() -> None:
    chosen = random.Random(SEED)
    topics = {"_x", ".x", "5Fx", "x._COPYING_", "x._COPYING5F", *("y" * length for length in range(1, 250))}
    for _ in range(2_000):
        length = chosen.choice([1, 2, 100, 101, 150, 200, 249])
        start = chosen.choice(["", "_", ".", "_" * 60])
        topic = (start + "".join(chosen.choices(CHARACTERS, k=length)))[-MAX_TOPIC_NAME_LENGTH:]
        ending = chosen.choice(["", "", "._COPYING_"])
        topics.add((topic + ending)[-MAX_TOPIC_NAME_LENGTH:])
        # Long ones that share all that is left of them in the name.
        topics.add("z" * 240 + "".join(chosen.choices(CHARACTERS, k=9)))
    topics = {topic for topic in topics if topic_name_problem(topic) is None}
    for limit in (143, 255):
        directories = {directory_name(topic, limit) for topic in topics}
        assert len(directories) == len(topics)
        assert all(len(name) <= limit and not is_hidden(name) for name in directories)
        assert len({file_name(topic, 0, 0, 0, 0, limit) for topic in topics}) == len(topics)
    assert len({staged_topic(topic) for topic in topics}) == len(topics)
    long = [topic for topic in topics if len(topic) == MAX_TOPIC_NAME_LENGTH]
    folded = {topic.lower() for topic in long} | {topic.upper() for topic in long}
    assert len({file_name(topic, 0, 0, 0).lower() for topic in folded}) == len(folded)
