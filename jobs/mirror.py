"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.mirror."""

from spark_kafkalite.jobs.mirror import main

if __name__ == "__main__":
    main()
