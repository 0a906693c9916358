"""What the source and the sink need of each Python that Spark starts."""

from __future__ import annotations

from typing import Final

# Without PySpark and what it brings: Spark gives its workers those.
NEEDED_MODULES: Final = ("cramjam", "crc32c", "pyarrow")
