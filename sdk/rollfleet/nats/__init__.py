"""Workers anywhere: batches, weights and control over NATS, which carries them, and stores nothing.

A `Link` is one connection on its own thread, through nats-py's `client`; `opening` finds its address and credentials.
The learner's side is `NatsTransport`: `intake` decides what to ask of workers, `receiver` makes arrivals of it,
`sender` sends weights and control, `heartbeats` follows workers, and `numbering` their processes. The worker's side is
`NatsWorkerTransport`: `outbox` keeps and sends its batches, `weights` reassembles versions. `calls` has both sides of
calls. `job_source` is how a process knows its job; `embedded_server` runs a nats-server for a job on this machine.
"""
