"""``kafkalite groups``, and what other commands share with it."""
