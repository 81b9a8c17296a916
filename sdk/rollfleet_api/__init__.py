"""What the SDK and the operator agree on: the job as a type, its names on NATS, and what a worker is told.

This package owns the words and their checks, and does nothing with them: no network, no processes, no clock. It must
not import torch, numpy, gymnasium or kopf, nor the packages above it (`rollfleet`, `rollfleet_operator`); importing it
has no effect and reads no environment variable.
"""

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobSpec, CollectorJobStatus

__all__ = ["API_VERSION", "KIND", "CollectorJob", "CollectorJobSpec", "CollectorJobStatus"]
