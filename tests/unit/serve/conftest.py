"""Not collected: scripts for other Pythons, which have the clients."""

collect_ignore = ["triton_tour.py", "langchain_tour.py", "reference_model.py", "reference_tour.py"]
