"""Program → Plan of Kernels → source text: the kernel compiler."""
