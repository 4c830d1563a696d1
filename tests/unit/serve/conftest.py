"""Not collected: a script for another Python, which has tritonclient."""

collect_ignore = ["triton_tour.py"]
