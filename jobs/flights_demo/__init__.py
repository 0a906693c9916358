"""The demo: the flights that left New York in 2013, through every part of spark-kafkalite, each step checked."""
