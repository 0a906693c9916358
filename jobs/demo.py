"""The main job on real input, from a producer through the broker into Spark and Hadoop and back; run by `make demo`."""

from flights_demo.main import main

if __name__ == "__main__":
    main()
