"""Frames in memory: a worker's fragments, a learner's batches, and replay buffers.

One worker collects a `Fragment` for a batch. A batch is a TensorDict `[envs, T]` with TorchRL's keys. A `ReplayBuffer`
keeps the newest frames. Nothing here steps an environment, calls a policy, or sends anything.
"""
