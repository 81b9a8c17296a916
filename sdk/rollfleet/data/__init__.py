"""Frames in memory: what a worker writes, the batch that a learner gets, and the buffers that keep frames.

A `Storage` is preallocated memory that a rollout fills. A `Fragment` is what one worker collected for a batch. A batch
is a TensorDict `[envs, T]` with TorchRL's keys. A `ReplayBuffer` keeps the newest frames; its `Ring` may lie in memory
that processes share. Nothing here steps an environment, calls a policy, or sends anything.
"""
