"""The rights of the registry's files and directory."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.tree.private_files import narrow


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in directory.iterdir()}


def test_new_files_are_their_owners_from_the_first_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "data" / "_registry"
    with EmbeddedRegistry(directory) as registry:
        EmbeddedStore(registry).create("/secret", b"x").result()
        found = modes(directory)
    assert {"registry.db", "registry.db-wal", "registry.lock", "registry.zxid"} <= set(found)
    assert set(found.values()) == {0o600}
    assert mode(directory) == 0o700
    # Only what is the registry's own.
    assert mode(tmp_path / "data") & 0o077
    assert not caplog.records


def test_wider_rights_are_narrowed_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "registry"
    with EmbeddedRegistry(directory) as registry:
        EmbeddedStore(registry).create("/secret", b"x").result()
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o664)
    with EmbeddedRegistry(directory) as registry:
        assert EmbeddedStore(registry).get("/secret").result()[0] == b"x"
        assert set(modes(directory).values()) == {0o600}
    assert mode(directory) == 0o700
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"{directory}/registry.db" in line and "make new secrets" in line
    caplog.clear()
    with EmbeddedRegistry(directory):
        pass
    assert not caplog.records


def test_a_directory_with_files_of_others_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("of somebody else")
    (tmp_path / "notes.txt").chmod(0o644)
    (tmp_path / "registry.db").touch()
    (tmp_path / "registry.db").chmod(0o640)
    narrow(tmp_path)
    assert modes(tmp_path) == {"notes.txt": 0o644, "registry.db": 0o600}
    assert mode(tmp_path) == 0o755


def test_rights_that_are_narrow_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "registry.db").touch()
    (tmp_path / "registry.db").chmod(0o400)
    tmp_path.chmod(0o500)
    narrow(tmp_path)
    assert (modes(tmp_path), mode(tmp_path)) == ({"registry.db": 0o400}, 0o500)
