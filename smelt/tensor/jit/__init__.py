"""Tensor functions → executables: compile, realise, callbacks."""
