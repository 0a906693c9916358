"""Tries the mutants, and says which tests find each.

    python -m tests.mutants [--check] [MUTANT ...]

All of them without names. ``--check`` only looks whether each text that a mutant replaces is in the tree once. The exit
code is 1 when a mutant survives, or when a text is not there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.mutants.table import MUTANTS
from tests.mutants.trial import BrokenTrial, Copy, problems
from tests.paths import PROJECT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try mutants on a copy of the tree.")
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="those to try; all without names")
    parser.add_argument("--check", action="store_true", help="check that the table fits the tree, and run no test")
    options = parser.parse_args()
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in options.names if name not in by_name]:
        parser.error(f"no such mutant: {', '.join(unknown)}")
    chosen = [by_name[name] for name in options.names or by_name]
    if wrong := problems(chosen, PROJECT):
        print(*wrong, sep="\n")
        return 1
    if options.check:
        print(f"{len(chosen)} mutants fit the tree")
        return 0
    with tempfile.TemporaryDirectory(prefix="kafkalite-mutants-") as directory:
        try:
            copy = Copy(PROJECT, Path(directory))
            copy.check_tests(chosen)
            survived = 0
            for mutant in chosen:
                outcome = copy.outcome(mutant)
                survived += outcome.found_by is None
                print(outcome, flush=True)
        except BrokenTrial as error:
            print(error)
            return 1
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
