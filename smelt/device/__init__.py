"""Compilers, drivers and device memory. `engine` and `run` compile and launch through it."""
