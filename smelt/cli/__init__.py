"""The command line. `main.py` has the commands and options; each command is one file."""
