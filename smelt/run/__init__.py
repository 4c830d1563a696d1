"""Load and run compiled models, without the compiler."""
