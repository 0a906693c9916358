"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.hadoop_load."""

from spark_kafkalite.jobs.hadoop_load import main

if __name__ == "__main__":
    main()
