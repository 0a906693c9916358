"""What Spark's Python processes need: clients that they keep, files, tokens, memory, and their log."""
