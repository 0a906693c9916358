"""The log directories of one broker: which they are, how full they are, their checkpoints."""
