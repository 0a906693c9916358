"""The documents are true in what a program can check: names of files and functions, links, examples, settings, targets.

Read with ``ast``, not imported: a page may name what needs Spark. Nothing here needs the network.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.spark.options.declarations import READER_OPTIONS, WRITER_OPTIONS
from tests.lab.jars import APACHE_KAFKA_VERSION
from tests.paths import PROJECT

PACKAGE = PROJECT / "spark_kafkalite"
ARCHITECTURE = PROJECT / "docs" / "architecture.md"
ARCHITECTURE_PAGES = (ARCHITECTURE, PROJECT / "docs" / "architecture_jobs.md")
PARITY = PROJECT / "docs" / "spark_parity.md"
README = PROJECT / "README.md"
CONTRIBUTING = PROJECT / "CONTRIBUTING.md"
PAGES = (README, CONTRIBUTING, PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").glob("*.md")))

SOURCE_SUFFIXES = (".py", ".pyx", ".pyi", ".pxi")
# Folders of the repository that a page names from the top; everything else is relative to the package.
TOP_LEVEL = ("pyspark_kafkalite/", "jobs/", "tests/", "scripts/", "bench/", "conf/", "docs/")

# Written so that they do not find themselves. A path of one machine, or the host of one package registry, helps nobody
# else, and may say more about where the project was made than it should.
MACHINE = re.compile(
    r"/home[/][a-z]|/wor[k]/|/roo[t]/|/User[s]/"
    r"|pypi[.]org|pythonhosted[.]|repo1?[.]maven|maven[.](org|apache)|npmjs[.]|crates[.]io|proxy[.]golang|anaconda[.]"
    r"|artifactor[y]|index-ur[l]"
)


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git knows and the work tree has: work in progress beside it is nobody's claim yet."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True)
    files = (PROJECT / name for name in listing.stdout.decode().split("\0") if name)
    return tuple(path for path in files if path.is_file())


# What the pages name -------------------------------------------------------------------------------------------------


def code_spans(page: Path) -> list[str]:
    """What stands in single backticks, outside code blocks."""
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    return re.findall(r"`([^`\n]+)`", prose)


def located(path: str) -> Path:
    # `jobs/` is also the folder of the entry points for spark-submit: the package's folder comes first.
    if path.startswith("jobs/") and (PACKAGE / path).exists():
        return PACKAGE / path
    return PROJECT / path if path.startswith(TOP_LEVEL) else PACKAGE / path


@cache
def members_of(path: Path) -> dict[str, set[str]]:
    """Classes of a module with their members, its functions and constants without: by ``ast``, nothing is run."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = set(_names(node.body))
        else:
            found.update({name: set() for name in _names([node])})
    return found


def _names(body: list[ast.stmt]) -> list[str]:
    names = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def problem_with(span: str) -> str | None:
    """Say what is wrong with ``path.py`` or ``path.py:name``; None when it is there, or when the span is neither."""
    match = re.fullmatch(r"([\w./-]+(?:\.py|\.pyx|\.pyi|\.pxi))(?::([\w.]+))?", span)
    if match is None:
        return None
    path, name = located(match[1]), match[2]
    if not path.is_file():
        return f"{match[1]} does not exist"
    if name is None:
        return None
    first, _, second = name.partition(".")
    known = members_of(path)
    if first not in known or (second and second not in known[first]):
        return f"{match[1]} has no {name}"
    return None


@cache
def classes() -> dict[str, set[str]]:
    """Every class of the package; classes of one name have the members of all of them."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "messages":
            for name, members in members_of(path).items():
                found.setdefault(name, set()).update(members)
    return found


def test_the_check_of_names_can_fail() -> None:
    assert problem_with("broker/replication/leader.py:Leader.try_append") is None
    assert problem_with("log/no_such_module.py") == "log/no_such_module.py does not exist"
    assert (
        problem_with("broker/replication/partition.py:Partition.no_such")
        == "broker/replication/partition.py has no Partition.no_such"
    )
    assert problem_with("broker/replication/partition.py:no_such") == "broker/replication/partition.py has no no_such"
    assert problem_with("linger.ms") is None


def test_architecture_names_files_and_functions_that_exist() -> None:
    spans = [span for page in ARCHITECTURE_PAGES for span in code_spans(page)]
    assert sum(":" in span and ".py" in span for span in spans) > 100
    assert [problem for span in spans if (problem := problem_with(span))] == []


def test_architecture_names_methods_that_exist() -> None:
    spans = [span for page in ARCHITECTURE_PAGES for span in code_spans(page)]
    named = [span.split(".") for span in spans if re.fullmatch(r"_?[A-Z]\w+\.[a-z_]\w*", span)]
    assert len(named) > 20
    missing = [f"{name}.{member}" for name, member in named if member not in classes().get(name, set())]
    assert missing == []


LOADERS_RULES = 17


def test_every_rule_of_loaders_has_tests_that_exist() -> None:
    """Rules L1 to L17, which loaders before this one paid for."""
    rows = re.findall(r"^\| (\d+)\. .* \| (`tests/.*`) \|$", (PROJECT / "docs/hadoop_load.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, LOADERS_RULES + 1))
    named = [name for _, tests in rows for name in re.findall(r"`([^`]+)`", tests)]
    assert [name for name in named if not re.fullmatch(r"tests/[\w/]+/test_\w+\.py::test_\w+", name)] == []
    assert [problem for name in named if (problem := problem_with(name.replace("::", ":")))] == []


def parity_rows() -> list[list[str]]:
    """The cells of each row that says what Spark's connector does, what ours makes of it, and which tests show it."""
    lines = [line for line in PARITY.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "| kafkalite |" not in line]


def test_every_row_beside_sparks_connector_has_tests_that_exist_or_sparks_own_reason() -> None:
    rows = parity_rows()
    assert len(rows) > 70
    bare = []
    for theirs, ours, tests in rows:
        verdict = re.match(r"\*\*(same|more|other|no)\*\*", ours)
        assert verdict, ours
        named = re.fullmatch(r"`tests/[^`]+`(, `tests/[^`]+`)*", tests)
        if named is None and not (verdict[1] == "no" and "Spark" in ours and tests == "-"):
            bare.append(theirs)
    assert bare == []
    named_tests = [name for *_, tests in rows for name in re.findall(r"`([^`]+)`", tests)]
    assert [name for name in named_tests if not re.fullmatch(r"tests/[\w/]+/test_\w+\.py::test_\w+", name)] == []
    assert [problem for name in named_tests if (problem := problem_with(name.replace("::", ":")))] == []
    assert problem_with("tests/unit/test_docs.py:test_no_such") == "tests/unit/test_docs.py has no test_no_such"


def test_the_page_beside_sparks_connector_names_every_option_of_it() -> None:
    text = PARITY.read_text()
    declared = {setting.name for group in (READER_OPTIONS, WRITER_OPTIONS) for setting in group}
    # Source: KafkaSourceProvider, and the integration guide of Spark's connector.
    sparks = (
        *("subscribe", "subscribePattern", "assign", "includeHeaders", "groupIdPrefix", "failOnDataLoss", "topic"),
        *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy"),
        *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "minPartitions", "maxRecordsPerPartition"),
        *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    )
    assert set(sparks) - {"groupIdPrefix"} <= declared
    assert [name for name in [*sparks, "kafka.bootstrap.servers", "kafka.group.id"] if f"`{name}`" not in text] == []


def test_every_module_says_what_it_owns() -> None:
    modules = [path for path in tracked_files() if path.is_relative_to(PACKAGE) and path.suffix == ".py"]
    assert PACKAGE / "log/segments/segment.py" in modules
    silent = [path for path in modules if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))]
    assert [str(path.relative_to(PROJECT)) for path in silent] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [link.partition("#")[0] for link in links if "://" not in link]
    assert [link for link in local if link and not (page.parent / link).exists()] == []


# Examples ------------------------------------------------------------------------------------------------------------


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", page.read_text())


def test_examples_compile_and_import_what_exists() -> None:
    examples = blocks(README, "python")
    assert len(examples) >= 2
    for example in examples:
        tree = ast.parse(example)
        compile(tree, str(README), "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_kafkalite"):
                module = import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_programs_of_the_examples_folder_are_printed_as_they_are() -> None:
    programs = sorted((PROJECT / "docs" / "examples").glob("at_*.py"))
    assert len(programs) == 2
    printed = blocks(PROJECT / "docs" / "consumers.md", "python")
    assert [path.name for path in programs if path.read_text() not in printed] == []


def test_examples_use_options_that_exist() -> None:
    declared = {setting.name for group in (READER_OPTIONS, WRITER_OPTIONS) for setting in group}
    sparks_own = {"path", "checkpointLocation"}
    used = [name for example in blocks(README, "python") for name in re.findall(r'\.option\("([^"]+)"', example)]
    assert used
    assert [name for name in used if name not in declared | sparks_own and not name.startswith("kafka.")] == []
    overrides = re.findall(r"--override ([\w.]+)=", (PROJECT / "docs" / "cluster.md").read_text())
    assert overrides
    BROKER_SETTINGS.parse(dict.fromkeys(overrides, "PLAINTEXT://127.0.0.1:0"))


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z0-9-]+):", (PROJECT / "Makefile").read_text()))
    named = {
        name
        for page in (*PAGES, PROJECT / "bench" / "README.md")
        for name in re.findall(r"(?m)(?:`|^\$ )make ([a-z0-9-]+)", page.read_text())
    }
    assert {"demo", "test"} <= named
    assert sorted(named - targets) == []


@pytest.mark.parametrize("page", (CONTRIBUTING, README), ids=lambda page: page.name)
def test_other_pages_name_files_that_exist(page: Path) -> None:
    # Capitals stand for a name of the reader's own, and first.py is the reader's.
    named = [span.split()[0] for span in code_spans(page) if re.match(r"[a-z_/.-]+\.(py|pyx|pxi|md|toml)$", span)]
    missing = [name for name in named if not (PROJECT / name).exists() and not located(name).exists()]
    assert missing == ["first.py"] * named.count("first.py")


def test_the_lag_that_the_page_about_mirrors_shows_is_that_of_records_of_today() -> None:
    ages_s = re.findall(r"\((\d+) s\)", (PROJECT / "docs" / "mirror.md").read_text())
    assert ages_s
    assert [age for age in ages_s if int(age) > 86_400] == []


# The README ----------------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_each_of_its_blocks_is_run_by_a_test() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    run_by = {
        "A first row": "tests/spark/test_readme.py",
        "Stream": "tests/spark/test_readme.py",
        "Load into files, once": "tests/spark/test_readme.py",
        "Replay a past range": "tests/spark/test_readme.py",
        "Test with a real broker": "tests/interop/cluster/test_docs.py",
        # Its two commands: those of the pages that it leads to.
        "Three hosts": "tests/interop/cluster/test_disasters.py",
        # But for the registry that pip asks.
        "Install": "tests/packaging/test_wheel.py",
    }
    assert [name for name, part in sections.items() if "```" in part and name not in run_by] == []
    assert [
        name for name, test in run_by.items() if "```" not in sections[name] or not (PROJECT / test).is_file()
    ] == []


def test_the_readme_names_the_versions_that_the_tests_run_on() -> None:
    rows = dict(re.findall(r"(?m)^\| ([^|]+) \| (.+) \|$", README.read_text()))
    pins = dict[str, set[str]]()
    for path in PROJECT.glob("requirements*.txt"):
        for name, version in re.findall(r"(?m)^([\w-]+)==(\S+)$", path.read_text()):
            pins.setdefault(name, set()).add(version)
    assert set(re.findall(r"4\.\d+\.\d+", rows["PySpark"])) == pins["pyspark"]
    clients = rows["Clients of this broker"]
    for client in ("confluent-kafka", "kafka-python", "aiokafka"):
        assert re.findall(rf"{client} ([\d.]+\d)", clients) == sorted(pins[client])
    for row in (clients, rows["Brokers"]):
        assert re.findall(r"(?:Java|Apache Kafka) ([\d.]+\d)", row) == [APACHE_KAFKA_VERSION]


# Where it was made ---------------------------------------------------------------------------------------------------


def test_no_file_names_the_machine_it_was_made_on() -> None:
    assert README in tracked_files()
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # Not text.
        found += [
            f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(lines, 1)
            if MACHINE.search(line) or str(PROJECT) + "/" in line
        ]
    assert found == []
