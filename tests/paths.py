"""Where tests find what lies beside them in the project."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
GOLDEN: Final = PROJECT / "tests" / "golden"
