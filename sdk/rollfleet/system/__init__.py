"""The operating system's services: shared memory, child processes, CPUs, devices.

This package knows nothing of reinforcement learning and imports no other package of Rollfleet but `errors` and
`arguments`.
"""
