"""The test of README.md that needs a cluster: it runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readmes_test_passes(cluster: KafkaliteCluster) -> None:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text(encoding="utf-8"))
    (program,) = [block for block in blocks if "kafkalite_cluster" in block]
    names: dict[str, object] = {}
    exec("from spark_kafkalite import Producer\n" + program, names)
    names["test_orders_survive_a_crash"](cluster)  # type: ignore[operator]
