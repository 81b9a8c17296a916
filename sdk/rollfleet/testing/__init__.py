"""Tests for implementers: a conformance suite of transports, and an environment whose batches can be checked.

`transport_checks` are functions with plain assertions: pytest, or any other runner, calls each with a function that
makes a `Rig`. Nothing here imports pytest, and no other package may import this one.
"""

from rollfleet.testing.counting_env import CountingEnv
from rollfleet.testing.rig import MakeRig, Marked, Rig, marked_workload, small_job
from rollfleet.testing.transport_checks import BACKGROUND_CHECKS, TRANSPORT_CHECKS

__all__ = [
    "BACKGROUND_CHECKS",
    "TRANSPORT_CHECKS",
    "CountingEnv",
    "MakeRig",
    "Marked",
    "Rig",
    "marked_workload",
    "small_job",
]
