"""Environments in Gymnasium's terms: one vector environment for each worker, from a job's `env`.

`factory` builds it, with the backend that the job names: `gymnasium_backend` or `env_pool`. Environments step in this
thread (`serial`), in processes (`subprocesses`, each a `server`), or in EnvPool's threads. `vector` has those of
processes for loops of users. `spaces` and `space_tree` map spaces to tensors and batch keys.
"""
