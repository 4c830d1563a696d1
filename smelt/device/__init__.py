"""Bytes and launches: what touches compilers, drivers and device memory."""
