"""Policies: any kind of policy behind one `Actor`, and the built-in policies.

`factory` builds a policy from a job's `policy`, and `lazy` initialises its lazy parameters. `Actor` calls it once a
step for all environments: modules and callables, with or without a hidden state (`recurrence`), and those that take a
TensorDict (`tensordict_call`). `outputs` checks their results. `ActorCritic` is the policy `mlp`, and `fast_mlp` runs a
small one in numpy; `RandomPolicy` is the policy `random`, `RunningNorm` a part of policies. Nothing here steps an
environment.
"""
