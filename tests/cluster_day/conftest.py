"""The day itself is for the soak: by default only the tests of its pure parts are collected."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("KAFKALITE_SOAK") else ["test_day.py"]
