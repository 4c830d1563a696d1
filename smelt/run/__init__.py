"""What runs a compiled model; nothing here compiles."""
