"""The agreement between the SDK and the operator: the job as a type, its names on NATS and in a cluster, its messages.

- `job` is a CollectorJob, of the parts `env`, `policy`, `collection`, `placement` and `evaluation`; `fields` and
  `quantity` build them. `documents` reads YAML, `validation` explains mistakes.
- `subjects` names a job's messages on NATS, `permissions` says who may send; `publication` is the job as one of them.
- `messages` are the small ones, such as heartbeats, and `transfers` those about batches and weights; `versions`
  number the weights; `status` is the job's status, and `state` makes it of processes and heartbeats
  (and `frame_rate`).
- `kinds`, `kubernetes_names`, `metadata` and `pods` are the paths, labels, names and fields of objects in a cluster.
  `views` reads them, `diagnosis` and `crowding` explain a job by them. `text`, `times` and `wording` are for messages.
- `address` is where a process finds its job, `exit_codes` are the ends of a worker, `ranks` divide workers.

This package defines types and checks them, nothing more: no network, no processes, no clock. It must not import torch,
numpy, gymnasium or kopf, nor the packages above it (`rollfleet`, `rollfleet_operator`). Importing it has no effect and
reads no environment variable.
"""

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobSpec, CollectorJobStatus

__all__ = ["API_VERSION", "KIND", "CollectorJob", "CollectorJobSpec", "CollectorJobStatus"]
