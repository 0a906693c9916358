"""`python -m bench [--quick] [NAME ...] [--part PART]`: run the benches and write the page of ratios.

Results go to bench/results/ as JSON with the machine and the commit, and to bench/RESULTS.md as a table.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measurement import Row, figure_text, line_of, wanted

NAMES = (
    "broker",
    "clients",
    "tls",
    "kerberos",
    "durability",
    "commits",
    "registry_rebalance",
    "registry",
    "cold_reader",
    "latency",
    "turns",
    "metrics",
    "exporter",
    "log_scale",
    "compaction_copy",
    "compaction",
    "groups",
    "quotas",
    "security_cost",
    "many_clients",
    "topics",
    "many_topics",
    "failover",
    "reassignments",
    "replication",
    "throttled_moves",
    "spark_read_write",
    "spark_versions",
    "spark_latency",
    "spark_start",
    "spark_sockets",
    "hadoop_load",
)
# Benches that are run in parts, each with a result of its own.
PARTS = {"security_cost": ("bytes", "handshakes", "idle", "flood", "authorizer", "tenants")}
# Both connectors run on the one PySpark that the JVM connector's jars are of.
ENVIRONMENTS = dict.fromkeys(
    ("spark_read_write", "spark_latency", "spark_start", "spark_sockets", "hadoop_load"), ".venv-spark42"
)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def main() -> int:
    """Run the asked-for benches, each in a process of its own, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="all of them when none is named")
    parser.add_argument("--quick", action="store_true", help="small amounts and few rounds: rough figures in minutes")
    parser.add_argument("--part", action="append", help="of a bench that has parts only this one; repeatable")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names, chosen = arguments.names or NAMES, arguments.part
    if arguments.one:
        return _run_here(arguments.one, chosen[0] if chosen else "", arguments.quick)
    runs = [(name, part) for name in names for part in PARTS.get(name, ("",)) if not chosen or part in chosen]
    if not runs or (chosen and not set(chosen) <= {part for _, part in runs}):
        known = "; ".join(f"{name}: {', '.join(parts)}" for name, parts in PARTS.items())
        parser.error(f"argument --part: {', '.join(chosen)}: no such part; there are {known}")
    failed = [f"{name} {part}".strip() for name, part in runs if not _run_apart(name, part, arguments.quick)]
    (ROOT / "bench" / "RESULTS.md").write_text(_page(), encoding="utf-8")
    print(f"\nwritten: {ROOT / 'bench' / 'RESULTS.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_apart(name: str, part: str, quick: bool) -> bool:
    python = ROOT / ENVIRONMENTS.get(name, ".venv") / "bin" / "python"
    command = [str(python), "-m", "bench", "--one", name, *(["--part", part] if part else [])]
    command += ["--quick"] if quick else []
    print(f"== {name} {part}".rstrip(), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _run_here(name: str, part: str, quick: bool) -> int:
    RESULTS.mkdir(exist_ok=True)
    document: dict[str, Any] = {
        "bench": f"{name}, {part}" if part else name,
        "quick": quick,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {_memory_gib()} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()} ({platform.python_build()[1]}, {platform.python_compiler()})",
        "rows": [],
    }
    bench = importlib.import_module(f"bench.{name}")
    for row in bench.rows(quick, part) if part else bench.rows(quick):
        print(line_of(row), flush=True)
        document["rows"].append(asdict(row))
        # After every row: a run that is cut short keeps what it has measured.
        _result(name, part).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _result(name: str, part: str) -> Path:
    return RESULTS / (f"{name}-{part}.json" if part else f"{name}.json")


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = " with uncommitted changes" if git("status", "--porcelain", "--", "spark_kafkalite") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _page() -> str:
    lines = [
        "# Measured figures",
        "",
        "Written by `make bench`. Medians; ours and the peer's runs are taken in turn on one machine, after a warm-up.",
        "These machines are noisy: read the ratios, not the absolute figures. The title of each table names the commit",
        "that was measured, which may be older than the last release.",
    ]
    for path in [_result(name, part) for name in NAMES for part in PARTS.get(name, ("",))]:
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        kind = "quick run, rough" if document["quick"] else "full run"
        lines += [
            "",
            f"## {document['bench']} (commit {document['commit']}, {document['when'][:10]})",
            "",
            f"{kind}; {document['machine']}",
            "",
        ]
        lines += ["| what | unit | ours | peer | ratio | wanted | |", "|---|---|---|---|---|---|---|"]
        for values in document["rows"]:
            row = Row(**values)
            ratio = f"{row.ratio:.2f}" if row.ratio else "-"
            peer = f"{figure_text(row.peer_median)} ({row.peer_name})"
            cells = [row.what, row.unit, figure_text(row.our_median), peer, ratio, wanted(row), row.verdict]
            lines.append(f"| {' | '.join(cells)} |")
        lines += [""] + [f"- {row['what']}: {row['note']}" for row in document["rows"] if row["note"]]
        if path.with_suffix(".svg").exists():
            lines += ["", f"![{path.stem}](results/{path.stem}.svg)"]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
