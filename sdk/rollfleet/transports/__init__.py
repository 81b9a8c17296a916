"""The two seams between a learner and its workers, and what both sides of every transport share.

`learner_side.Transport` gives a learner batches and takes weights and control; `worker_side.WorkerTransport` is its
other end. A `Workload` says what a worker runs; the `Roster` says who takes part, by heartbeats. `processes` and `nats`
implement both seams. What becomes of batches is written above, in `learner`; nothing here may import it.
"""
