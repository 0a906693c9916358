"""The program ``kafkalite``: finds the command, runs it, and turns an error into one line and an exit code.

Commands are modules of this package and are imported when they are named, so that a broker process never loads the
clients, pyarrow or rich. Exit codes: 0 done, 1 failed (the reason is one line on stderr), 2 wrong usage or settings.

Ctrl-C and a reader that has gone away (``kafkalite consume ... | head``) end a command without a word.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.printable import PrintableFormatter, printable, printable_lines

# Command, its module, and its line in the list of commands (so that the list loads none of them).
COMMANDS: Final = {
    "broker": ("broker", "Run a broker in the foreground."),
    "registry": ("registry", "Run the registry of a cluster alone, without ZooKeeper; rebuild a broker's."),
    "zookeeper": ("zookeeper", "Run a real ZooKeeper for development."),
    "topics": ("topics.command", "Create, list, describe, extend and delete topics."),
    "configs": ("configs", "Show and alter settings of topics and brokers."),
    "users": ("users", "Add, list and delete the users that authenticate by SCRAM."),
    "acls": ("acls", "Add, list and delete ACLs: which principals may do what."),
    "produce": ("produce", "Send records from standard input or a file."),
    "consume": ("consume", "Print the records of a topic."),
    "groups": ("groups.command", "Show consumer groups and their lag, move their offsets."),
    "offsets": ("offsets.command", "Look up the offsets of partitions, by time too."),
    "cluster": ("cluster.command", "Run a cluster on this host; show its brokers, leaders and replicas."),
    "dump-log": ("dump_log", "Show and check the files of a log."),
    "exporter": ("exporter", "Serve metrics of a cluster for Prometheus: topics, and the lag of groups."),
    "top": ("top.command", "Show a cluster as it is now: rates, lags, disks, partitions that need action."),
    "doctor": ("doctor.command", "Check that this host, and Spark's executors, can work with a cluster."),
    "jobs": ("jobs", "List, locate and run the Spark jobs."),
}

_HELP = """A partitioned, replayable log that speaks Kafka's protocol.

\b
A first try, in three terminals:
  kafkalite broker
  kafkalite produce --topic greetings                   and type a line, which makes the topic
  kafkalite consume --topic greetings --from-beginning

Every command that talks to a broker takes --bootstrap-server HOST:PORT (default 127.0.0.1:9092) and works with Apache
Kafka too. 'kafkalite COMMAND --help' shows a command's options and examples.
"""


class ReaderGone(Exception):
    """The reader of our output has closed it."""


class Interrupted(Exception):
    """Ctrl-C, where the command did not take it as the end of its work."""


class LazyCommands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        # click answers both by printing and choosing the exit code, also when it is asked to leave errors alone.
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            raise ReaderGone from None
        except KeyboardInterrupt:
            raise Interrupted from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(f"spark_kafkalite.cli.{entry[0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from spark_kafkalite import __version__

        click.echo(f"kafkalite {__version__}")
        ctx.exit()


@click.group(
    cls=LazyCommands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def kafkalite() -> None:
    """The root command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_missing_streams()
    if logging.lastResort is not None:
        # What the clients warn of looks like what the commands do.
        logging.lastResort.setFormatter(PrintableFormatter("kafkalite: warning: %(message)s"))
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result: Any = kafkalite.main(args=list(arguments), prog_name="kafkalite", standalone_mode=False)
    except ReaderGone:
        _discard_output()  # the reader has what it wanted
        return 0
    except (Interrupted, click.exceptions.Abort):
        return 1
    except click.UsageError as error:
        click.UsageError(printable_lines(error.format_message()), error.ctx).show()
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except ConfigError as error:
        return _fail(str(error), 2)
    except KafkaliteError as error:
        return _fail(str(error) or type(error).__name__, 1)
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()  # the disk behind it is full
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error), 1)
    return result if isinstance(result, int) else 0


def _discard_output() -> None:
    """Send what stdout still holds into nothing: the interpreter flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """Open nothing in the place of standard streams that were closed before the start (``kafkalite ... >&-``).

    Otherwise the first files and sockets opened would get the descriptors 0 to 2, and whatever writes to stderr would
    write into them: a broker's log, in the worst case.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _fail(message: str, code: int) -> int:
    click.echo(f"kafkalite: {printable(' '.join(message.split()))}", err=True)
    return code
