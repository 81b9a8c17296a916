"""Workers anywhere: batches, weights and control over NATS.

A `Link` is one connection on a thread of its own. The learner's side is `NatsTransport`: `receiver` takes batches from
the work queue, `sender` broadcasts weights and control. A worker's side is `NatsWorkerTransport`: `publisher` sends its
batches, `lease` gives it an incarnation that nobody else has, `weights` puts versions together. `streams` makes a job's
streams; `embedded_server` runs a nats-server for a job on this machine.
"""
