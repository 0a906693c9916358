"""What every job has around its work: a command line, a Spark session, progress, exit codes."""
