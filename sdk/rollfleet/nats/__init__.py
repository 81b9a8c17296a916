"""Workers anywhere: batches, weights and control over NATS.

A `Link` is one connection on its own thread, through nats-py's `client`; `opening` finds its address and credentials.
The learner's side is `NatsTransport`: `intake` decides what to ask of workers, `receiver` makes arrivals of it,
`sender` broadcasts weights and control, `heartbeats` follows workers. The worker's side is `NatsWorkerTransport`:
`outbox` keeps and sends its batches, `weights` reassembles versions. `calls` has both sides of calls; `lease` gives
either side a number that no other process has. `streams` creates a job's stream, again after NATS has lost it, and
`state` reads it; `embedded_server` runs a nats-server for a job on this machine.
"""
