"""A worker: a loop that collects a fragment, sends it, and applies the newest weights and control.

`Worker` runs in a process of this machine, in a pod, or in the learner's own thread: its `WorkerTransport` makes the
difference. `weight_receivers` finds what else in a worker wants weights: collectors inside its environments.
"""
