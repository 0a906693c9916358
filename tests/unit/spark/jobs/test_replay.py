"""What the replay job says before it runs."""

from pathlib import Path

from click.testing import CliRunner

from spark_kafkalite.spark.jobs import replay


def test_help_and_readme_say_that_a_replay_run_twice_writes_twice() -> None:
    shown = " ".join(CliRunner().invoke(replay.main, ["--help"]).output.split())
    assert "run twice, or run again after one that failed, it writes records twice" in shown
    readme = " ".join((Path(__file__).parents[4] / "README.md").read_text().split())
    assert "run twice, or again after a failure, it writes records twice" in readme
