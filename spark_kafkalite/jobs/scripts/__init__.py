"""Scripts for ``spark-submit``, one for each job."""
