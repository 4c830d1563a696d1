"""Program + Weights → files that other tools read."""
