"""Has the interpreter's objects lie in huge pages, in a process that serves: a broker, a registry.

Such a process wakes up for one request or two, does a few thousand small things all over its memory, and sleeps again,
on processors that others use meanwhile. With pages of 4 KB the processor has to translate the address of nearly every
object again. In a virtual machine this takes longer than reading the object; pages of 2 MB avoid it. Three brokers and
a producer, on two processors, need a twentieth less CPU with them.

Python 3.15 can do so by itself (``PYTHON_PYMALLOC_HUGEPAGES``, gh-144319); earlier ones have to be given the memory:
arenas of 1 MB, in which objects of up to 512 bytes lie. The system decides whether these become huge pages
(``/sys/kernel/mm/transparent_hugepage/enabled``: not with ``never``), and gives ordinary ones where it has no others.
Where memory is fragmented the system may first compact it (``defrag`` in the same directory) while the process waits
for the page. With ``KAFKALITE_HUGE_PAGES=0`` in its environment a process does not ask for them.
"""

from __future__ import annotations

import os

from spark_kafkalite.errors import ConfigError


def use_huge_pages() -> None:
    """Put all objects created from now on into huge pages: call it early. Without the extension nothing changes.

    Raises ConfigError when ``KAFKALITE_HUGE_PAGES`` in the environment is neither 1 (or empty) nor 0.
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
        # It is built with the kernel, and a process without the kernel warns already.
        return
    use()
