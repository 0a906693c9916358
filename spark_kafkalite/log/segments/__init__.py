"""The segments of one log and their indexes."""
