"""NATS with identities: accounts and users signed here, a job's streams, its heartbeats.

`tokens`, `keys`, `accounts`, `users` and `trust` are pure: time and randomness are arguments. `wire` speaks to the
server, through `connection`, `claims`, `streams` and `heard`; `bootstrap` is a small program of its own. Nothing here
imports kopf, nor knows of pods.

Each job has two accounts. The first holds its streams and its learner; the second its workers, who reach no more of
the first than what `rollfleet_api.permissions` lists. Within one account JetStream answers to any subject that a
request names, whatever the requester may publish: only a border between accounts stops that.
"""
