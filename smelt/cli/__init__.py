"""The command line: `smelt demo | run | show | check`."""
