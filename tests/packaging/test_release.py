"""A release is consistent: one version, a dated section of the changelog, and the commit of its tag.

releases.json has the commit of each version's tag, because a clone need not have tags. It is null until the tag is
made: a commit cannot contain its own number.
"""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from spark_kafkalite.version import VERSION
from tests.packaging.environments import git
from tests.paths import PROJECT

RELEASES: dict[str, str | None] = json.loads((PROJECT / "tests" / "packaging" / "releases.json").read_text())
CHANGELOG = (PROJECT / "CHANGELOG.md").read_text()
# The first release has no entry in RELEASES: it was never tagged.
SECTIONS = re.findall(r"(?m)^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", CHANGELOG)
UNRELEASED = "\n## [Unreleased]\n" in CHANGELOG


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _section(version: str, changelog: str) -> str:
    return changelog.split(f"## [{version}]")[1].split("\n## [")[0].strip()


def test_the_version_is_the_newest_section_of_the_changelog_or_one_in_development() -> None:
    newest, date = SECTIONS[0]
    if UNRELEASED:
        assert VERSION.endswith(".dev0"), "the changelog has unreleased changes"
        assert _numbers(VERSION.removesuffix(".dev0")) > _numbers(newest)
    else:
        assert newest == VERSION
    assert [each for _, each in SECTIONS] == sorted((each for _, each in SECTIONS), reverse=True), date
    assert list(RELEASES) == [version for version, _ in SECTIONS[:-1]][::-1]


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "spark_kafkalite.version.VERSION"}


@pytest.mark.parametrize("version", RELEASES)
def test_the_commit_of_a_release_has_its_version(version: str) -> None:
    commit, tagged = RELEASES[version], git("rev-list", "-n", "1", f"v{version}")
    if commit is None:
        assert version == VERSION, "only the newest release may lack its commit"
        assert tagged is None or tagged == git("rev-parse", "HEAD"), (
            f"write the tag's commit {tagged} into releases.json"
        )
        return
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert tagged in (None, commit)
    content = git("show", f"{commit}:spark_kafkalite/version.py")
    assert content is None or f'VERSION: Final = "{version}"' in content
    released = git("show", f"{commit}:CHANGELOG.md")
    assert released is None or _section(version, CHANGELOG) == _section(version, released), (
        "the changelog's section of a release is what was released: put later changes under Unreleased"
    )


def test_the_workflow_publishes_from_the_tag_without_a_stored_token() -> None:
    workflow = (PROJECT / ".github" / "workflows" / "release.yml").read_text()
    assert re.search(r'(?m)^    tags: \["v', workflow)
    assert "id-token: write" in workflow
    assert "secrets." not in workflow and "password" not in workflow
    made = set(re.findall(r"run: make ([\w-]+)", workflow))
    assert made == {"wheel", "check-wheel"}
    for target in made:
        assert f"\n{target}:" in (PROJECT / "Makefile").read_text()
