"""A worker: a loop that collects a fragment, sends it, and applies the newest weights and control.

`Worker` runs in a process on this machine, in a pod, or in the learner's own thread: only its `WorkerTransport`
differs. `remote_calls` answers calls of the learner. `evaluation` is the loop of an evaluation worker.
"""
