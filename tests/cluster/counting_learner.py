"""A learner that does not learn: it takes batches, sends weights and prints its progress."""

import signal
import sys
import time

import gymnasium

import rollfleet

PAUSE_S = 0.1  # between batches: a job goes on for as long as a test needs it, and leaves the CPUs to others

if __name__ == "__main__":
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as programs that save and leave
    with rollfleet.connect(policy=policy) as collector:
        print(f"connected at version {collector.version} and {collector.frames} frames", flush=True)
        collector.set_env({"low": -0.01, "high": 0.01})  # of CartPole's first states
        for batch in collector:
            settings = batch["collector", "env_version"][batch["collector", "traj_ids"] >= 0]
            assert settings.all(), "each environment has them, also those of pods that came later"
            print(f"{collector.frames} frames, {batch.batch_size[0]} environments", flush=True)
            time.sleep(PAUSE_S)
    print("done", flush=True)
