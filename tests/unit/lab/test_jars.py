import os
import stat
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.lab import jars

ONE_JAR = jars.JarSet("one", ("org.example:thing:1.0",), transitive=False)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("KAFKALITE_JAR_CACHE", str(cache))
    return cache


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named mvn that logs its arguments and project, then does what its body says."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return programs / "mvn"


def write_maven(path: Path, body: str) -> Path:
    calls = path.with_name("calls")
    path.write_text(
        "#!/bin/sh\n"
        f'for argument in "$@"; do case $argument in -DoutputDirectory=*) out=${{argument#*=}};; */pom.xml) '
        f"cat $argument >> {calls};; esac; done\n{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return calls


def test_fetches_once_and_then_needs_no_maven(fake_maven: Path) -> None:
    calls = write_maven(fake_maven, "mkdir -p $out && touch $out/thing-1.0.jar")
    directory = jars.fetch(ONE_JAR)
    assert [jar.name for jar in jars.jars_in(directory)] == ["thing-1.0.jar"]
    project = calls.read_text()
    fake_maven.unlink()
    assert jars.fetch(ONE_JAR) == directory
    assert jars.available(ONE_JAR) is None
    assert calls.read_text() == project


def test_leaves_nothing_half_fetched_when_maven_fails(fake_maven: Path, empty_cache: Path) -> None:
    write_maven(fake_maven, "mkdir -p $out && touch $out/half.jar && echo no such version >&2; exit 1")
    with pytest.raises(jars.JarsUnavailable, match="no such version"):
        jars.fetch(ONE_JAR)
    assert not ONE_JAR.cached
    assert [path for path in empty_cache.iterdir() if path.is_dir()] == []


def test_a_maven_that_brings_nothing_is_an_error(fake_maven: Path) -> None:
    write_maven(fake_maven, "mkdir -p $out")
    with pytest.raises(jars.JarsUnavailable, match="could not fetch one"):
        jars.fetch(ONE_JAR)


def test_without_maven_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = jars.available(ONE_JAR)
    assert reason is not None
    assert "Maven (mvn) is not installed" in reason
    with pytest.raises(jars.JarsUnavailable, match="is not installed"):
        jars.fetch(ONE_JAR)


@pytest.mark.parametrize("transitive", [False, True])
def test_the_project_asks_for_the_coordinates_and_for_no_more_than_wanted(fake_maven: Path, transitive: bool) -> None:
    calls = write_maven(fake_maven, "mkdir -p $out && touch $out/thing-1.0.jar")
    jars.fetch(replace(ONE_JAR, transitive=transitive))
    (dependency,) = ElementTree.fromstring(calls.read_text()).iter("dependency")
    assert [dependency.findtext(part) for part in ("groupId", "artifactId", "version")] == [
        "org.example",
        "thing",
        "1.0",
    ]
    assert (dependency.find("exclusions") is None) == transitive


def test_other_coordinates_are_another_directory() -> None:
    newer = replace(ONE_JAR, coordinates=("org.example:thing:1.1",))
    assert newer.directory != ONE_JAR.directory
    assert replace(ONE_JAR, transitive=True).directory != ONE_JAR.directory


def test_a_class_path_lists_directories_for_java_to_expand(tmp_path: Path) -> None:
    assert jars.class_path(tmp_path / "a", tmp_path / "b") == f"{tmp_path}/a/*{os.pathsep}{tmp_path}/b/*"


def test_the_program_fetches_the_sets_that_are_named(
    fake_maven: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = write_maven(fake_maven, "mkdir -p $out && touch $out/thing-1.0.jar")
    other = replace(ONE_JAR, name="other", coordinates=("org.example:other:1.0",))
    monkeypatch.setattr(jars, "ALL_SETS", (ONE_JAR, other))
    assert jars.main(["other"]) == 0
    assert (ONE_JAR.cached, other.cached) == (False, True)
    assert calls.read_text().count("<project>") == 1
    write_maven(fake_maven, "echo no network >&2; exit 1")
    assert jars.main([]) == 1
    assert "no network" in capsys.readouterr().err
