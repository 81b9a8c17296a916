"""TorchRL warns about its own classes when it is imported."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rollfleet.torchrl  # noqa: F401
