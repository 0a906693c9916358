"""``kafkalite offsets``: ``get`` (``command.py``), ``show`` and ``diff`` (``show.py``), and moves (``moves.py``)."""
