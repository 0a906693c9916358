"""Opening logs at a start: recovery after a crash, and what is missing or damaged."""
