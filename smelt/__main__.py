"""`python -m smelt`: the command line."""

from smelt.cli.main import main

main()
