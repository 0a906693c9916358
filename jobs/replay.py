"""Entry point for spark-submit; the job itself is spark_kafkalite.spark.jobs.replay."""

from spark_kafkalite.spark.jobs.replay import main

if __name__ == "__main__":
    main()
