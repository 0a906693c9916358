"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.stream."""

from spark_kafkalite.jobs.stream import main

if __name__ == "__main__":
    main()
