"""The formats of data files: what of a record stands in them, who makes them, how they are read again."""
