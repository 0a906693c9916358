"""What every job's command line has: exit codes in its help, errors in one line, --debug; and options of the lease."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from spark_kafkalite.jobs.program.outcome import EPILOG, ExitCode, error_line
from spark_kafkalite.jobs.program.quantities import Duration
from spark_kafkalite.jobs.program.session import DEBUG, JobFailed, failures_in_one_line, wants_stack_traces
from spark_kafkalite.jobs.program.stopping import Stopped, stopped_by_sigterm
from spark_kafkalite.manifests.names import place_problem

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Where a job's files go, by the options that say so.
_PLACES: Final = ("destination", "checkpoint")
_SHORTEST_LEASE_MS: Final = 1_000
_LONGEST_LEASE_MS: Final = 86_400_000


class JobCommand(click.Command):
    """A job: every error of its body is one line on stderr, and an exit code of ``outcome.ExitCode``."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        debug = click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_remember_debug,
            help="Show the tracebacks behind an error, and Spark's stack traces.",
        )
        attributes["params"] = [*(attributes.get("params") or []), debug]
        attributes["epilog"] = EPILOG
        super().__init__(*args, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        for option in _PLACES:
            # As of a variable that is not set: Hadoop and Python take it for the directory that the job runs in.
            if ctx.params.get(option) == "":
                raise click.BadParameter("is empty; name a directory", param_hint=f"--{option}")
        if (problem := place_problem(ctx.params.get("destination") or "")) is not None:
            raise click.BadParameter(problem, param_hint="--destination")
        try:
            with stopped_by_sigterm(), failures_in_one_line():
                return super().invoke(ctx)
        except Stopped as error:
            if wants_stack_traces():
                traceback.print_exception(error)
            raise _failed("stopped by SIGTERM; run again to go on", ExitCode.STOPPED) from error
        except JobFailed as error:
            if wants_stack_traces():
                traceback.print_exception(error.__cause__ or error)
            raise _failed(_with_place(error, ctx.params), error.code) from error.__cause__
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if wants_stack_traces():
                traceback.print_exception(error)
            raise JobFailed(f"{type(error).__name__}: {error_line(error)}; --debug shows where") from error


def _failed(message: str, code: ExitCode) -> JobFailed:
    told = JobFailed(message, code)
    # click declares it one of the class, and asks the instance.
    setattr(told, "exit_code", int(code))  # noqa: B010
    return told


def _remember_debug(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    ctx.meta[DEBUG] = wanted


def _with_place(error: JobFailed, given: dict[str, Any]) -> str:
    """Return the message, with the place that a file system's own words often leave out."""
    places = {option: given[option] for option in _PLACES if given.get(option)}
    if error.code != ExitCode.DESTINATION or not places or any(place in error.message for place in places.values()):
        return error.message
    named = " or ".join(f"--{option} {place}" for option, place in places.items())
    return f"{named}: {error.message}"


def is_given(parameter: str) -> bool:
    """Whether the option of this name was given to the job that runs, and has not its default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def names_in(text: str | None) -> tuple[str, ...]:
    """Return the names of a list with commas, each once, in their order."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def keep_manifests_option(function: _Function) -> _Function:
    """Add --keep-manifests, which gives milliseconds."""
    return click.option(
        "--keep-manifests",
        "keep_manifests_ms",
        type=Duration(),
        default="30d",
        show_default=True,
        help="How long manifests are kept once a checkpoint contains them.",
    )(function)


def lease_options(function: _Function) -> _Function:
    """Add --lease and --wait; both give milliseconds, --wait None where it was not given."""
    for option in (
        click.option(
            "--wait",
            "wait_ms",
            type=Duration(),
            help="How long to wait, in seconds or such as 10m, while another run holds the destination. Without it: "
            "until that run's lease ends, as a dead one's does, or is renewed.",
        ),
        click.option(
            "--lease",
            "lease_ms",
            type=Duration(_SHORTEST_LEASE_MS, _LONGEST_LEASE_MS),
            default="60s",
            show_default=True,
            help="After how long without a sign of life this run is taken for dead by the next one.",
        ),
    ):
        function = option(function)
    return function
