"""Schedule parameters of kernels: defaults, what is legal, search, cost model."""
