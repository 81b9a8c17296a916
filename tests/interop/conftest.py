"""Imports TorchRL, a dependency of tests alone."""

import warnings

# 0.14 warns of its own classes when they are defined, and of functions that it calls itself.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.data
    import torchrl.envs
    import torchrl.modules
    import torchrl.objectives
    import torchrl.objectives.value  # noqa: F401
