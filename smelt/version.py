"""The version of this package, for everything that writes it into files."""

__version__ = "0.1.0"
