"""Function → plan: fusion, which values are materialised, memory."""
