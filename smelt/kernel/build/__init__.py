"""One file per class of kernel: op → loops."""
