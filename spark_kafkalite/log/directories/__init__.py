"""The log directories of one broker: which there are, how full they are, their checkpoints."""
