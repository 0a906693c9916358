"""The load: which offsets a run takes, how they are read and staged, and the account of each offset."""
