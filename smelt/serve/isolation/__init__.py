"""Models in worker processes of their own: sandbox, shared memory, the process that forks workers."""
