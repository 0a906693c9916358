"""Has the interpreter's objects lie in huge pages, in a process that serves: a broker, a registry.

Such a process wakes up for one request or two, does a few thousand small things all over its memory, and sleeps again,
on processors that others use meanwhile. In pages of 4 KB nearly every object that it touches has its address looked up
anew, which in a virtual machine takes longer than reading it; 2 MB at a time, it does not. Three brokers that replicate
beside a producer, on two processors, need a twentieth less CPU so.

Python 3.15 can do so by itself (``PYTHON_PYMALLOC_HUGEPAGES``, gh-144319); earlier ones have to be given the memory:
arenas of 1 MB, in which objects of up to 512 bytes lie. The system decides whether these become huge pages
(``/sys/kernel/mm/transparent_hugepage/enabled``: not with ``never``), and gives ordinary ones where it has no others.
Where memory is in many small pieces it may first move some together (``defrag`` beside that file), while who needs the
page waits. With ``KAFKALITE_HUGE_PAGES=0`` in its environment a process does not ask for them.
"""

from __future__ import annotations

import os

from spark_kafkalite.errors import ConfigError


def use_huge_pages() -> None:
    """Have it so for all that comes from now on, so before much is imported. Without the extension nothing changes.

    Raises ConfigError when the environment says neither that it is to be so (1, or nothing) nor that it is not (0).
    """
    wanted = os.environ.get("KAFKALITE_HUGE_PAGES") or "1"
    if wanted not in ("0", "1"):
        raise ConfigError(
            f"KAFKALITE_HUGE_PAGES={wanted!r} in the environment: 0 (not to ask for huge pages) or 1, the default"
        )
    if wanted == "0":
        return
    try:
        from spark_kafkalite._huge_pages import use
    except ImportError:
        # It is built with the kernel, of which a process without a compiler hears enough.
        return
    use()
