from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafkalite.security import token_keeper
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.settings import SettingGroup

GROUP = SettingGroup("security", SECURITY_SETTINGS)


@pytest.fixture(autouse=True)
def _no_tokens_of_other_tests() -> Iterator[None]:
    """The process keeps tokens by their sources, and another test's endpoint may have had the same port."""
    token_keeper._KEEPERS.clear()
    yield


@pytest.fixture
def parsed():
    """Return all security settings, those given as text parsed, the others at their defaults."""
    return lambda **given: {
        **GROUP.defaults(),
        **GROUP.parse({name.replace("_", "."): value for name, value in given.items()}),
    }
