"""``python -m spark_kafkalite.cli`` is ``kafkalite``."""

from spark_kafkalite.cli.main import main

main()
