"""NATS for the operator: the stream of each job, and its heartbeats.

`server_port` implements `NatsPort` with `connection` and `job_on_nats`. No module here imports kopf
or knows of pods.
"""
