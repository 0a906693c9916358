"""The example files in conf/: every name is a real setting, every value a legal one, also in the lines that are
commented out.
"""

import re
from pathlib import Path

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.settings import read_properties
from tests.paths import PROJECT

CONF = PROJECT / "conf"
EXAMPLES = sorted(CONF.glob("*.properties"))


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"server.properties", "log-host.properties"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_line_is_a_setting_of_the_broker(path: Path, tmp_path: Path) -> None:
    uncommented = tmp_path / path.name
    uncommented.write_text(re.sub(r"(?m)^#(?=[a-z.]+=)", "", path.read_text()))
    given = read_properties(uncommented)
    assert len(given) >= len(read_properties(path)) > 0
    BROKER_SETTINGS.parse(given)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_lines_that_are_not_in_force_show_the_default_unless_their_comment_names_another(path: Path) -> None:
    defaults = BROKER_SETTINGS.defaults()
    comment = ""
    for line in path.read_text().splitlines():
        if shown := re.match(r"#([a-z][a-z.]*)=(.*)", line):
            value = BROKER_SETTINGS.parse({shown[1]: shown[2]})[shown[1]]
            named = "default" in comment or "Not set:" in comment
            # None: a setting whose default is that of its synonym in other units.
            assert defaults[shown[1]] in (value, None) or named, line
        elif line.startswith("#"):
            comment += line
        else:
            comment = ""


def test_spark_defaults_are_names_and_values() -> None:
    lines = [line.lstrip("#") for line in (CONF / "spark-defaults.conf").read_text().splitlines()]
    settings = [line.split() for line in lines if line.startswith("spark.") and not line.endswith(".")]
    assert settings
    assert all(len(setting) == 2 for setting in settings)
