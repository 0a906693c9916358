"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.replay."""

from spark_kafkalite.jobs.replay import main

if __name__ == "__main__":
    main()
