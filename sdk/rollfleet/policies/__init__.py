"""What acts: a policy of any kind behind one `Actor`, and the built-in policies.

`factory` makes a policy from a job's `policy`. `Actor` calls it once a step for all environments: TensorDictModules,
modules, callables, with a hidden state (`recurrence`) or without. `ActorCritic` is the policy `mlp`; `fast_mlp` runs a
small one in numpy. A policy does not know where it runs, and nothing here steps an environment.
"""
