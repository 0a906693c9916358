from __future__ import annotations

import pytest

from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.settings import SettingGroup

GROUP = SettingGroup("security", SECURITY_SETTINGS)


@pytest.fixture
def parsed():
    """Return all security settings, those given as text parsed, the others at their defaults."""
    return lambda **given: {
        **GROUP.defaults(),
        **GROUP.parse({name.replace("_", "."): value for name, value in given.items()}),
    }
