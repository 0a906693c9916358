"""The version of the package: pyproject.toml has the same, which a test of the wheel checks."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
