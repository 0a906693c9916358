"""The seed of a test run: every test that draws by chance draws from it.

``make check`` and ``make test`` use the seed below, so that a run repeats the last one. ``KAFKALITE_SEED`` overrides
it. The soak (``KAFKALITE_SOAK``) draws a new one. A seed that finds a fault becomes a case of its own next to the test
that found it.
"""

from __future__ import annotations

import os
import random
from typing import Final

# Changed on purpose only: a change of it is a new experiment.
_SEED_OF_THE_TREE: Final = 20_261_127

SOAK: Final = bool(os.environ.get("KAFKALITE_SOAK"))
SEED: Final = int(
    os.environ.get("KAFKALITE_SEED") or (random.SystemRandom().randrange(1, 1 << 31) if SOAK else _SEED_OF_THE_TREE)
)
# The workers of a run, and programs that its tests start, draw from the same seed.
os.environ["KAFKALITE_SEED"] = str(SEED)
