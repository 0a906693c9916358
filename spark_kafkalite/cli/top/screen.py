"""The screen of ``kafkalite top``, drawn by rich. Only this module loads rich, and only at a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_kafkalite.cli.top.view import BY_GROWTH, OFFLINE, REFUSES, BrokerRow, GroupRow, PartitionRow, TopicRow, View
from spark_kafkalite.printable import printable

_SIDE_BY_SIDE_FROM: Final = 130
_MOST_BROKERS: Final = 8
_MOST_PROBLEMS: Final = 6
# A table's heading, and the line above it.
_TABLE_LINES: Final = 2
_LEAST_ROWS: Final = 2
_UNITS: Final = ("", "k", "M", "G", "T", "P")
# Columns of brokers that a narrow terminal leaves out, the first of them first.
_OPTIONAL: Final = ("OUT/S", "IN/S", "FREE", "REPLICAS", "LOOP-LAG", "LEADERS", "NOTE")
# The same of topics, groups and partitions, whose names are cut to this before.
_OPTIONAL_OF_NAMED: Final = ("MEMBERS", "STATE", "PARTITIONS", "REPLICAS", "LAG-SECONDS", "LEADER", "IN SYNC")
_LEAST_NAME: Final = 24
_FULL_FROM_PERCENT: Final = 85
_LATE_FROM_MS: Final = 50


def drawn(view: View, width: int, height: int, seconds_ago: float) -> RenderableType:
    """Return a screen of at most ``height`` lines. ``seconds_ago``: how old the view is."""
    brokers = view.brokers[:_MOST_BROKERS]
    problems = view.partitions[:_MOST_PROBLEMS]
    used = 2 + _TABLE_LINES + len(brokers) + ((_TABLE_LINES + len(problems)) if problems else 0)
    room = max(0, height - used)
    parts: list[RenderableType] = [_head(view, seconds_ago), _brokers(brokers, len(view.brokers), width)]
    if problems:
        parts.append(_partitions(problems, len(view.partitions), width))
    if width >= _SIDE_BY_SIDE_FROM:
        rows = max(_LEAST_ROWS, room - _TABLE_LINES)
        grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
        grid.add_column(ratio=2)
        grid.add_column(ratio=3)
        left = width * 2 // 5
        grid.add_row(_topics(view.topics[:rows], view, left - 2), _groups(view.groups[:rows], view, width - left - 2))
        parts.append(grid)
    else:
        each = max(_LEAST_ROWS, (room - 2 * _TABLE_LINES) // 2)
        # What one does not need the other may have.
        topics = min(len(view.topics), max(each, room - 2 * _TABLE_LINES - len(view.groups)))
        groups = max(_LEAST_ROWS, room - 2 * _TABLE_LINES - topics)
        parts += [_topics(view.topics[:topics], view, width), _groups(view.groups[:groups], view, width)]
    return Group(*parts)


def _head(view: View, seconds_ago: float) -> Text:
    counts = view.counts
    line = Text.assemble(
        ("kafkalite top", "bold"),
        f"  {counts.get('brokers', 0)} brokers  {counts.get('topics', 0):,} topics  "
        f"{counts.get('partitions', 0):,} partitions  {counts.get('groups', 0):,} groups  "
        f"{_rate(view.records_per_s)} records/s  ",
    )
    if view.cluster_id is not None and view.controller < 0:
        line.append("no controller is known", "bold red")
    elif view.cluster_id is not None:
        line.append(f"controller {view.controller}")
    if elsewhere := counts.get("not_led_by_preferred_replica", 0):
        line.append(f"  {elsewhere:,} not led by the preferred replica", "yellow")
    line.append(f"  cluster {printable(view.cluster_id or '-')}", "dim")
    if view.problem:
        line.append(f"\n{printable(view.problem)}", "bold red")
    elif view.cluster_id is None:
        line.append(f"\nthe brokers are asked for the first time: {seconds_ago:.0f} s", "yellow")
    elif seconds_ago > 3:
        line.append(f"\nthe last look was {seconds_ago:.0f} s ago", "yellow")
    else:
        line.append("\nCtrl-C ends", "dim")
    # One line each: a terminal that is too narrow cuts them.
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _table(title: str, columns: Sequence[tuple[str, bool]], wide: str) -> Table:
    """Return an empty table; ``columns`` are headings, and whether they hold numbers. ``wide`` takes what room is left,
    and is cut first."""
    table = Table(box=None, padding=(0, 1), header_style="bold reverse", expand=True)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for heading, is_number in columns:
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if heading == wide else None,
        )
    return table


def _named(title: str, columns: dict[str, list[Text]], is_left: Collection[str], width: int) -> Table:
    """Return a table whose first column holds names: a narrow terminal leaves other columns out before it cuts names
    below 24 characters."""
    name = next(iter(columns))
    longest = max([len(name), *(cell.cell_len for cell in columns[name])])
    spared = max(0, longest - _LEAST_NAME)
    for heading in _OPTIONAL_OF_NAMED:
        if _width(columns) - spared <= width:
            break
        columns.pop(heading, None)
    table = _table(title, [(heading, heading not in is_left) for heading in columns], name)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _brokers(rows: Sequence[BrokerRow], total: int, width: int) -> Table:
    columns: dict[str, list[Text]] = {
        "ID": [Text(str(row.id)) for row in rows],
        "ADDRESS": [
            Text(printable(row.address)) if row.is_live else Text("not in the cluster", "bold red") for row in rows
        ],
        "LEADERS": [Text(str(row.leaders)) for row in rows],
        "REPLICAS": [Text(str(row.replicas)) for row in rows],
        "RECORDS/S": [Text(_rate(row.records_per_s)) for row in rows],
        "IN/S": [Text(_bytes(row.bytes_in_per_s)) for row in rows],
        "OUT/S": [Text(_bytes(row.bytes_out_per_s)) for row in rows],
        "DISK": [_percent(row.disk_used_percent) for row in rows],
        "FREE": [Text(_bytes(row.disk_free_bytes)) for row in rows],
        "LOOP-LAG": [_lag(row.loop_lag_p99_ms) for row in rows],
        "NOTE": [Text(printable(row.problem or "") if row.is_live else "", "red") for row in rows],
    }
    for heading in _unneeded(columns):
        if _width(columns) <= width:
            break
        del columns[heading]
    is_left = ("ADDRESS", "NOTE")
    table = _table(f"Brokers ({total})", [(heading, heading not in is_left) for heading in columns], "NOTE")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _unneeded(columns: Mapping[str, Sequence[Text]]) -> list[str]:
    """Return the columns of brokers that a narrow terminal can do without: first those that know nothing."""
    unknown = [heading for heading in _OPTIONAL if all(cell.plain in ("-", "") for cell in columns[heading])]
    return [*unknown, *(heading for heading in _OPTIONAL if heading not in unknown and heading != "NOTE")]


def _width(columns: Mapping[str, Sequence[Text]]) -> int:
    return sum(max(len(heading), *(cell.cell_len for cell in cells), 0) + 2 for heading, cells in columns.items())


def _percent(used: float | None) -> Text:
    full = used is not None and used >= _FULL_FROM_PERCENT
    return Text("-" if used is None else f"{used:.0f} %", "red" if full else "")


def _lag(p99_ms: float | None) -> Text:
    late = p99_ms is not None and p99_ms >= _LATE_FROM_MS
    return Text("-" if p99_ms is None else f"{p99_ms:.1f} ms", "red" if late else "")


def _topics(rows: Sequence[TopicRow], view: View, width: int) -> Table:
    columns = {
        "TOPIC": [Text(printable(row.topic)) for row in rows],
        "PARTITIONS": [Text(str(row.partitions)) for row in rows],
        "RECORDS": [Text(f"{row.records:,}") for row in rows],
        "RECORDS/S": [Text(_rate(row.records_per_s)) for row in rows],
    }
    return _named(f"Topics by rate ({view.counts.get('topics', 0):,})", columns, ("TOPIC",), width)


def _groups(rows: Sequence[GroupRow], view: View, width: int) -> Table:
    by = "growth of lag" if view.groups_by == BY_GROWTH else "lag"
    columns = {
        "GROUP": [Text(printable(row.group)) for row in rows],
        "STATE": [Text(row.state or "-") for row in rows],
        "MEMBERS": [Text("-" if row.members is None else str(row.members)) for row in rows],
        "LAG": [Text(f"{row.lag:,}") for row in rows],
        "GROWTH/S": [_growth(row.growth_per_s) for row in rows],
        "LAG-SECONDS": [Text("-" if row.lag_seconds is None else f"{row.lag_seconds:,.1f}") for row in rows],
    }
    return _named(f"Groups by {by} ({view.counts.get('groups', 0):,})", columns, ("GROUP", "STATE"), width)


def _growth(per_s: float | None) -> Text:
    grows = per_s is not None and per_s > 0
    return Text("-" if per_s is None else f"{per_s:+,.1f}", "yellow" if grows else "")


def _partitions(rows: Sequence[PartitionRow], total: int, width: int) -> Table:
    columns = {
        "TOPIC": [Text(printable(row.topic)) for row in rows],
        "PARTITION": [Text(str(row.partition)) for row in rows],
        "PROBLEM": [Text(row.problem, "bold red" if row.problem in (OFFLINE, REFUSES) else "yellow") for row in rows],
        "LEADER": [Text("none" if row.leader < 0 else str(row.leader)) for row in rows],
        "REPLICAS": [Text(",".join(map(str, row.replicas))) for row in rows],
        "IN SYNC": [Text(",".join(map(str, row.isr))) for row in rows],
    }
    is_left = ("TOPIC", "PROBLEM", "REPLICAS", "IN SYNC")
    return _named(f"Partitions that need action ({total:,})", columns, is_left, width)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    power = 0
    while value >= 1000 and power < len(_UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.1f} {_UNITS[power]}B" if power else f"{value:.0f} B"
