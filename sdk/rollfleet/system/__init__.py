"""The operating system's services: shared memory, file locks, child processes, process setup, CPUs, entry points.

This package knows nothing of reinforcement learning and imports no other package of Rollfleet but `errors`.
"""
