import pytest

from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.commit_options import CommitOptions
from spark_kafkalite.spark.options.options import reader_options

OPTIONS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
ZOOKEEPER = {"zookeeper.connect": "z1:2181,z2:2181/chroot"}


def commit(**given: str) -> CommitOptions:
    return reader_options({**OPTIONS, **given}).commit


def refusal(**given: str) -> str:
    with pytest.raises(SparkConditionError) as caught:
        commit(**given)
    return str(caught.value).splitlines()[-1]


def test_nothing_is_committed_without_a_group():
    assert commit() == CommitOptions()
    assert not commit().commits
    options = reader_options({**OPTIONS, "kafka.group.id": "g"})
    assert not options.commit.commits
    assert "kafka.group.id has no effect" in options.notes[0]
    assert "never commits" in options.notes[0]


@pytest.mark.parametrize(
    ("given", "to_group", "to_zookeeper"),
    [
        ({}, True, False),
        ({"commitOffsets": "GROUP"}, True, False),
        ({"commitoffsets": "zookeeper", **ZOOKEEPER}, False, True),
        ({"commitOffsets": "both", "kafka.zookeeper.connect": "z1:2181,z2:2181/chroot"}, True, True),
        ({"commitOffsets": "none"}, False, False),
    ],
)
def test_the_group_is_the_default_with_a_group_id(given, to_group, to_zookeeper):
    options = commit(groupid="g", **given)
    assert (options.to_group, options.to_zookeeper) == (to_group, to_zookeeper)
    assert options.group_id == "g"
    assert options.zookeeper_connect == ("z1:2181,z2:2181/chroot" if to_zookeeper else None)


@pytest.mark.parametrize(
    ("given", "last_line"),
    [
        (
            {"commitOffsets": "group"},
            "[KAFKALITE_INVALID_OPTION] groupId=(not set): commitOffsets=group needs the group to commit to; "
            "set groupId",
        ),
        (
            {"startingOffsets": "committed"},
            "[KAFKALITE_INVALID_OPTION] groupId=(not set): startingOffsets=committed needs the group whose offsets to "
            "start from; set groupId",
        ),
        (
            {"groupId": "g", "commitOffsets": "both"},
            "[KAFKALITE_INVALID_OPTION] zookeeper.connect=(not set): commitOffsets=both needs the address of the "
            "ensemble; set zookeeper.connect=host:port,...[/chroot]",
        ),
        (
            {"groupId": " "},
            "[KAFKALITE_INVALID_OPTION] groupId=: names no group; give it a name, or leave it out",
        ),
        (
            {"groupId": "g", "commitOffsets": "kafka"},
            "[KAFKALITE_INVALID_OPTION] commitOffsets=kafka: must be one of group, zookeeper, both, none",
        ),
        (
            {"groupId": "g", "startingOffsets": "committed", "committedFallback": "none"},
            "[KAFKALITE_INVALID_OPTION] committedFallback=none: must be one of fail, earliest, latest",
        ),
        (
            {"groupId": "g", "endingOffsets": "committed"},
            "[KAFKALITE_INVALID_OPTION] endingOffsets=committed: not latest, and not a JSON object; write it as in "
            '{"topic":{"0":23,"1":-2}}',
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_to_do(given, last_line):
    assert refusal(**given) == last_line


@pytest.mark.parametrize("group", ["a/b", ".", "..", "a\nb"])
def test_a_group_in_zookeeper_must_fit_into_a_path(group):
    assert commit(groupId=group).group_id == group
    assert "take another name" in refusal(groupId=group, commitOffsets="zookeeper", **ZOOKEEPER)


def test_options_without_effect_are_noted():
    notes = reader_options({**OPTIONS, "groupId": "g", "committedFallback": "latest", **ZOOKEEPER}).notes
    assert notes == (
        "option zookeeper.connect has no effect with commitOffsets=group; only zookeeper and both use it",
        "option committedFallback has no effect without startingOffsets=committed",
    )


def test_a_batch_read_commits_nothing_and_says_so():
    options = {**OPTIONS, "groupId": "g"}
    (note,) = reader_options(options).batch_notes()
    assert note.startswith("option groupId has no effect on this batch read")
    assert reader_options({**options, "startingOffsets": "committed"}).batch_notes() == []
