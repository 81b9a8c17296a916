"""Workers anywhere: batches, weights and control over NATS.

A `Link` is one connection on its own thread, through nats-py's `client`; `opening` finds its address and credentials.
The learner's side is `NatsTransport`: `receiver` takes batches from the work queue, `sender` broadcasts weights and
control, `heartbeats` follows workers. The worker's side is `NatsWorkerTransport`: `publisher` sends its batches,
`lease` gives it a unique incarnation, `weights` reassembles versions. `calls` has both sides of calls. `streams`
creates a job's streams, again after NATS has lost them, and `state` reads them; `embedded_server` runs a nats-server
for a job on this machine.
"""
