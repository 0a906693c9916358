"""The last release, unpacked once for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.upgrade.last_release import LastRelease, unpack


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> LastRelease:
    return unpack(tmp_path_factory.mktemp("last-release"))
