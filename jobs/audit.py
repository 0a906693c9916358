"""Entry point for spark-submit; the job itself is spark_kafkalite.spark.jobs.audit."""

from spark_kafkalite.spark.jobs.audit import main

if __name__ == "__main__":
    main()
