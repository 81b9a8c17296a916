"""Environments in Gymnasium's terms: a job's `env` becomes one vector environment for a worker.

`factory` makes it from an id, an entry point, or a function. It steps in this thread (`serial`), in processes
(`subprocesses`), or in EnvPool's threads (`env_pool`). `spaces` and `space_tree` map spaces to tensors and batch keys.
"""
