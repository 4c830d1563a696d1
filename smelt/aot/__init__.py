"""Compiled models without Python: executables, C libraries (docs/edge.md)."""
