"""Automatic differentiation on StableHLO: one rule per op (`table`), and the sweeps that apply them (`sweep`)."""
