"""Import TorchRL, a dependency of tests only."""

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
