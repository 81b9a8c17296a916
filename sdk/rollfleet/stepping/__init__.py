"""What a rollout is made of: lanes of environments, episodes, memory, seeds."""
