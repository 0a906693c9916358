"""The formats of data files: which parts of a record they hold, and how they are written and read."""
