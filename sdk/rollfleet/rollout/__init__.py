"""Environments stepped by a policy, recorded without a gap: fragments of `[envs, T]` frames.

`Rollout` owns one vector environment, one actor, and the `Storage` that they fill. It steps through a `Stepper`:
`lockstep` for environments that reset within a step, `next_step` for those that reset in a step of their own.
`whole_trajectories` cuts at episode ends. Seeds (`seeding`) and trajectory ids (`trajectory_ids`) are unique in a job.
Nothing here sends or receives.
"""
