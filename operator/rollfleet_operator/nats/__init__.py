"""NATS for the operator: the heartbeats of each job.

`server_port` implements `NatsPort` with `connection` and `job_on_nats`. No module here imports kopf
or knows of pods.
"""
