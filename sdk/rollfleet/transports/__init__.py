"""The two seams between a learner and its workers, and the parts that every transport shares.

`learner_side.Transport` gives a learner batches and takes weights and control; `worker_side.WorkerTransport` is its
other end. A `Workload` describes the work of a worker. The `Roster` follows heartbeats: it knows which workers take
part. The `evaluation_log` keeps results of evaluations. `processes` and `nats` implement both seams. The code above, in
`learner`, uses the batches; nothing here may import it.
"""
