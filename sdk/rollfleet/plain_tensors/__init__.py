"""TorchRL's environments and policies, stepped and called on plain tensors: the same batches bit by bit, and faster.

`environments` and `policy` read both at each batch: the learner may have changed them. `frames` steps the one with the
other on a dict of tensors, and makes a TensorDict once for a batch. All that is not exactly a class of a known version
takes TorchRL's own path, and without this folder all does. Nothing here imports `rollout`.
"""
