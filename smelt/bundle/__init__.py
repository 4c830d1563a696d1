"""What runs a compiled model, and the one file that holds it. Nothing here knows programs, kernels or model formats."""
