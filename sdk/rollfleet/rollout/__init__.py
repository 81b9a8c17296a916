"""Environments stepped by a policy, recorded without a gap: fragments of `[envs, T]` frames.

`Rollout` owns one vector environment, one actor, and the `Storage` that they fill. Its `Stepper` is the loop over them.
`whole_trajectories` cuts at episode ends. Seeds (`seeding`) and trajectory ids (`trajectory_ids`) are unique in a job.
Nothing here sends or receives.
"""
