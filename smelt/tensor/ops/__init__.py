"""Ops of the tensor front end, one file per family."""
