"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.compact."""

from spark_kafkalite.jobs.compact import main

if __name__ == "__main__":
    main()
