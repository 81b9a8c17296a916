"""Import TorchRL, a dependency of tests only."""

import multiprocessing
import warnings

# 0.14 warns about its own classes when they are defined, and about functions that it calls itself.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.collectors.distributed
    import torchrl.data
    import torchrl.envs
    import torchrl.modules
    import torchrl.objectives
    import torchrl.objectives.value  # noqa: F401

# TorchRL makes `spawn` the start method of this process. Each process of an environment, in every other test that runs
# here, would be a new interpreter.
multiprocessing.set_start_method(None, force=True)
