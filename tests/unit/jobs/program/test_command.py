"""What the command lines of all jobs share."""

import signal

import click
import pytest
from click.testing import CliRunner

from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.load.planning import DataLossError, PlanError
from spark_kafkalite.jobs.program.command import JobCommand, lease_options
from spark_kafkalite.jobs.program.outcome import ExitCode
from spark_kafkalite.jobs.program.session import JobFailed


def outcome(error: Exception, *arguments: str) -> tuple[int, list[str]]:
    @click.command(cls=JobCommand)
    @click.option("--destination")
    def job(destination: str | None) -> None:
        raise error

    result = CliRunner().invoke(job, [*arguments])
    return result.exit_code, result.output.splitlines()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DestinationHeld("held"), 6, "Error: held"),
        (DataLossError("two\n  lines"), 4, "Error: two lines"),
        (PlanError("no range"), 1, "Error: no range"),
        (ZeroDivisionError("by 0"), 1, "Error: ZeroDivisionError: by 0; --debug shows where"),
        (JobFailed("no jar", ExitCode.DESTINATION), 5, "Error: --destination /d: no jar"),
        (JobFailed("/d/x: full", ExitCode.DESTINATION), 5, "Error: /d/x: full"),
        (ConnectionRefusedError(111, "refused"), 1, "Error: ConnectionRefusedError: refused"),
    ],
)
def test_a_failure_is_one_line_and_a_code(error: Exception, code: int, line: str) -> None:
    assert outcome(error, "--destination", "/d") == (code, [line])


def test_sigterm_ends_a_job_with_its_own_code_once_it_has_let_go() -> None:
    let_go: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    @click.command(cls=JobCommand)
    def job() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            # Who asks twice does not interrupt what is being let go of.
            signal.raise_signal(signal.SIGTERM)
            let_go.append("the lease")

    result = CliRunner().invoke(job)
    assert (result.exit_code, result.output) == (143, "Error: stopped by SIGTERM; run again to go on\n")
    assert let_go == ["the lease"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_place_that_is_empty_is_refused() -> None:
    """As of a variable that is not set: it would be the directory that the job runs in."""
    code, lines = outcome(ZeroDivisionError(), "--destination", "")
    assert (code, lines[-1]) == (2, "Error: Invalid value for --destination: is empty; name a directory")


@pytest.mark.parametrize("sign", "{}[]*?\\")
def test_a_destination_that_spark_takes_for_a_pattern_is_refused(sign: str) -> None:
    code, lines = outcome(ZeroDivisionError(), "--destination", f"hdfs://a/b{sign}")
    told = f"hdfs://a/b{sign}: Spark reads a path with {sign} as a pattern of several paths; name a directory without"
    assert code == 2
    assert lines[-1].startswith(f"Error: Invalid value for --destination: {told}")


def test_debug_shows_the_traceback_of_what_was_raised_first() -> None:
    code, lines = outcome(DestinationHeld("held"), "--debug")
    assert (code, lines[0], lines[-1]) == (6, "Traceback (most recent call last):", "Error: held")
    assert any(line.endswith("raise error") or "raise error" in line for line in lines)


@click.command()
@lease_options
def leases(lease_ms: int, wait_ms: int | None) -> None:
    click.echo(f"{lease_ms} {wait_ms}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "60000 None"),
        (["--lease", "90", "--wait", "0"], "90000 0"),
        (["--lease", "10m", "--wait", "PT1H"], "600000 3600000"),
        (["--lease", "500ms"], "is not a duration"),
        (["--lease", "0.5s"], "0.5s is 0.5 s: must be at least 1 s and at most 86400 s"),
        (["--wait", "-1"], "is not a duration"),
    ],
)
def test_durations_of_leases(arguments: list[str], said: str) -> None:
    assert said in CliRunner().invoke(leases, arguments).output
