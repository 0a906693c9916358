"""The sink: writers, the records that a broker rejects, and the checks before a write."""
