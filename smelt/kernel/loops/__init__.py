"""The loop grammar, kernels being written in it, and how their loops are scheduled."""
