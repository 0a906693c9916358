"""The options of format("kafkalite"), for the source and for the sink."""
