"""Files as programs and weights: one module per format."""
