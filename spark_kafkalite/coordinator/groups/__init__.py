"""Consumer groups and committed offsets: the coordinator whose topic is ``__consumer_offsets``."""
