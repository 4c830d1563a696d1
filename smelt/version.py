"""The version of this package, for everything that writes it into files."""

VERSION = "0.1.0"
