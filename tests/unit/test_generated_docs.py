"""The generated pages of docs/ say what the code says."""

from __future__ import annotations

import runpy

from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.broker.requests.handlers import API_MODULES, load
from tests.paths import PROJECT

SCRIPT = PROJECT / "scripts" / "generate_docs.py"


def test_generated_pages_are_up_to_date() -> None:
    stale = runpy.run_path(str(SCRIPT))["stale_pages"]()
    assert [path.name for path in stale] == [], "run scripts/generate_docs.py"


def test_the_protocol_page_lists_every_api_with_a_text() -> None:
    page = runpy.run_path(str(SCRIPT))["protocol_page"]()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    # The other table has what each needs.
    rows, needs = [row for row in rows if len(row) > 3], [row for row in rows if len(row) == 3]
    assert [row[:2] for row in needs] == sorted((row[:2] for row in rows), key=lambda row: int(row[0][2:]))
    assert rows[0][:4] == ["| 0", "Produce", "3-10", "0"]
    assert len(rows) == len(API_MODULES)
    assert all(len(row[4].rstrip(" |")) > 10 for row in rows)


def test_every_handler_lies_in_the_file_that_has_its_apis_name() -> None:
    load()
    assert {api.key.name.lower() for api in SERVED_APIS.values()} == set(API_MODULES)
