"""The exit codes of a worker's process: the operator decides by them whether to start it again."""

from typing import Final

EXIT_COMPLETE: Final = 0
"""The job is complete, or the worker left when it was asked to."""

EXIT_CRASHED: Final = 1
"""The worker failed. It may succeed when it is started again."""

EXIT_HOPELESS: Final = 2
"""The worker failed and would fail again in the same way: the job is invalid, or weights do not fit the policy."""

EXIT_TERMINATED: Final = 143
"""SIGTERM ended the process: its pod was deleted."""
