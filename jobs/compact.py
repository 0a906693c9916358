"""Entry point for spark-submit; the job itself is spark_kafkalite.spark.jobs.compact."""

from spark_kafkalite.spark.jobs.compact import main

if __name__ == "__main__":
    main()
