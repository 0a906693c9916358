"""Entry point for spark-submit; the job itself is spark_kafkalite.spark.jobs.stream."""

from spark_kafkalite.spark.jobs.stream import main

if __name__ == "__main__":
    main()
