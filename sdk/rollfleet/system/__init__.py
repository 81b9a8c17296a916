"""What Rollfleet needs of the operating system: shared memory, file locks, child processes, CPUs, entry points.

It knows nothing of reinforcement learning and imports no other package of Rollfleet.
"""
