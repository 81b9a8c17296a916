"""TorchRL's environments and policies, stepped and called on plain tensors: the same batches bit by bit, and faster.

`environments` and `transforms` read an environment, and `policy` a policy, at each batch: the learner may have changed
them. `frames` steps the one with the other on a dict of tensors, and makes a TensorDict once for a batch. What is not
exactly a class of a known version of TorchRL is not translated, and takes TorchRL's own path. The folder can be
removed: all then takes that path. Nothing here imports `rollout`.
"""
