"""NATS for the operator: the accounts and users that it signs, a job's streams, its heartbeats.

`tokens`, `keys`, `accounts`, `users` and `trust` are pure: time and randomness are arguments. `server_port` implements
`NatsPort` with `connection`, `account_registry`, `streams` and `heartbeat_listener`. `bootstrap` and
`reachable` are small programs. No module here imports kopf or knows of pods.

Each job has one account: nothing passes from one to another. `rollfleet_api.permissions` limits the users in it.
"""
