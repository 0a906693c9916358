"""Entry point for spark-submit; the job itself is spark_kafkalite.jobs.audit."""

from spark_kafkalite.jobs.audit import main

if __name__ == "__main__":
    main()
