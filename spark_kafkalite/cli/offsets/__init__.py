"""``kafkalite offsets``: ``get`` (``command.py``), ``show`` and ``diff`` (``views.py``), and moves (``moves.py``)."""
