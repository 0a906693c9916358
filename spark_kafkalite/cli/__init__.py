"""The command line, ``kafkalite``: one file per command, loaded only when it is used."""

import sys

# The commands that serve. Of `registry` not its subcommands, which a hang-up may end.
if sys.argv[1:2] in (["broker"], ["registry"]) and (len(sys.argv) == 2 or sys.argv[2].startswith("-")):
    # Before anything else is loaded, which takes long enough for a signal to come.
    from spark_kafkalite import early_signals

    early_signals.hold()
