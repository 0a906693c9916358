"""What one part of the program has said: other clients of this process may say something meanwhile, too."""

from __future__ import annotations

import pytest


def said_by(logger: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of a logger and of those below it."""
    return [each.getMessage() for each in caplog.records if each.name.startswith(logger)]
