"""Which Java commands use an archive of classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes import java_process
from spark_kafkalite.processes.java_process import java_arguments
from tests.lab import class_archives

ARCHIVE = "-XX:SharedArchiveFile=/archives/kafka.jsa"


@pytest.fixture(autouse=True)
def one_archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(class_archives, "_made", lambda: {"/kafka/*": Path("/archives/kafka.jsa")})
    monkeypatch.setattr(java_process, "_more_options", class_archives.options_for)
    monkeypatch.setattr(java_process, "java_command", lambda: "/bin/java")
    yield


@pytest.mark.parametrize("class_path", ["/kafka/*", "/kafka/*:/compiled"])
def test_a_command_uses_the_archive_of_what_its_class_path_begins_with(class_path: str) -> None:
    command = java_arguments(class_path, "Main", "argument", jvm_options=["-Xmx1m"])
    assert command[:2] == ["/bin/java", ARCHIVE]
    assert command[-6:-4] == ["-Xmx1m", "-Djava.net.preferIPv4Stack=true"]


@pytest.mark.parametrize("class_path", ["/kafka/*b", "/compiled:/kafka/*", ""])
def test_any_other_command_uses_none(class_path: str) -> None:
    assert not any("SharedArchive" in part for part in java_arguments(class_path, "Main"))
