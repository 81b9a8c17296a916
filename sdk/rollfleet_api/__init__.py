"""The agreement between the SDK and the operator: the job as a type, its names on NATS and in a cluster, its messages.

This package defines types and checks them, nothing more: no network, no processes, no clock. It must not import torch,
numpy, gymnasium or kopf, nor the packages above it (`rollfleet`, `rollfleet_operator`). Importing it has no effect and
reads no environment variable.
"""

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobSpec, CollectorJobStatus

__all__ = ["API_VERSION", "KIND", "CollectorJob", "CollectorJobSpec", "CollectorJobStatus"]
