"""What tests of other projects use: fixtures, a file system in memory, and a clock that is set by hand.

``testing.pytest_plugin`` brings the fixtures, and ``processes`` the brokers behind them. Nothing in the package imports
this one.
"""
