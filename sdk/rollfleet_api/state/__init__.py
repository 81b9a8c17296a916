"""The state of a job: what follows from its processes and their heartbeats, up to its status.

The rules are the same on a cluster, where the processes are pods, and on one machine.

- `processes` are what is observed: runs of processes, their pods, and the last heartbeats.
- `problems` are what keeps pods from their work. `verdict` decides whether the job goes on.
- `snapshot` is the job at one moment; its `conditions` and its `status` follow from it.

All of it is pure: it reads no clock, no cluster and no NATS. It must not import the packages above `rollfleet_api`.
"""
