"""The exit codes of a worker's process: the operator and `rollfleet run` decide by them whether to start it again."""

from typing import Final

EXIT_COMPLETE: Final = 0
"""The learner has completed the job. No other end has this code: Kubernetes never starts such a worker again."""

EXIT_CRASHED: Final = 1
"""The worker failed. It may succeed when it is started again."""

EXIT_PERMANENT: Final = 2
"""The worker failed and would fail again in the same way: the job is invalid, weights do not fit the policy, or the
environments failed their first reset."""

EXIT_GONE: Final = 3
"""The job, NATS, or an environment server was not there. It may come back: a deleted job's workers are not started
again anyway."""

EXIT_REPLACED: Final = 4
"""Another process took this worker's index."""

EXIT_TERMINATED: Final = 143
"""SIGTERM ended the process: its pod was deleted."""

NO_FAILURE: Final = (EXIT_GONE, EXIT_REPLACED, EXIT_TERMINATED)
"""Exit codes that do not count as failures: the worker is restarted, without counting a restart. In ascending order."""
