"""NATS for the operator: the accounts and users that it signs, a job's streams, its heartbeats.

`tokens`, `keys`, `accounts`, `users` and `trust` are pure: time and randomness are arguments. `server_port` implements
`NatsPort` with `connection`, `account_registry`, `streams` and `heartbeat_listener`. `bootstrap`, `installation`
and `reachable` are small programs. No module here imports kopf or knows of pods.

Each job has two accounts. One has its streams and its learner, the other its workers, who reach only the subjects that
`rollfleet_api.permissions` lists. One account would not be enough: JetStream answers on any subject that a request
names, so that a worker could make it publish anywhere in its account.
"""
