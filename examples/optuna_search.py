"""A search for good hyperparameters with Optuna: each trial trains a policy with workers of its own.

`pip install optuna`, then `python examples/optuna_search.py`: all in this process. `--workers 2` collects in processes,
and `--workers 2 --namespace team-a` in pods: then each trial is a job of the kubeconfig's cluster. Several of these
programs with the same `--storage sqlite:///search.db` share the trials.
"""

import argparse

import gymnasium
import optuna
import torch
from anywhere import train

import rollfleet


def trained(trial: optuna.Trial, frames: int, workers: int, cluster: rollfleet.Cluster | None) -> float:
    """Train a policy with the hyperparameters of a trial. Return the mean return of the last 100 episodes."""
    torch.manual_seed(0)
    hidden = trial.suggest_categorical("hidden", [32, 64, 128])
    learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    frames_per_batch = trial.suggest_categorical("frames_per_batch", [512, 1024, 2048])
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=(hidden, hidden))
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    with rollfleet.Collector(
        "CartPole-v1",
        policy,
        num_envs=8,
        frames_per_batch=frames_per_batch,
        total_frames=frames,
        workers=workers,
        cluster=cluster,
    ) as collector:
        for batch in collector:
            train(policy, optimizer, batch)
            trial.report(collector.mean_return or 0.0, step=collector.frames)
            if trial.should_prune():  # worse than the other trials after as many frames
                break
    if trial.should_prune():
        raise optuna.TrialPruned
    return collector.mean_return or 0.0


def main(frames: int, trials: int, workers: int, namespace: str | None, storage: str | None) -> None:
    """Run trials, and print the best one."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    cluster = rollfleet.Cluster(namespace=namespace, cpu="500m", memory="1Gi") if namespace else None
    # Trials with other batch sizes report after other frames: the pruner compares them at the same steps only.
    pruner = optuna.pruners.MedianPruner(n_warmup_steps=frames // 4, interval_steps=2048)
    study = optuna.create_study(
        direction="maximize", study_name="ppo", storage=storage, load_if_exists=True, pruner=pruner
    )
    study.optimize(lambda trial: trained(trial, frames, workers, cluster), n_trials=trials)
    pruned = sum(trial.state is optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"{len(study.trials)} trials, {pruned} pruned; the best: mean return {study.best_value:.1f}")
    print(study.best_params)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=30_720, help="of each trial")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--workers", type=int, default=0, help="0: collect in this process")
    parser.add_argument("--namespace", help="run the workers as pods of the kubeconfig's cluster, in this namespace")
    parser.add_argument("--storage", help="a database of trials, which several programs may share")
    arguments = parser.parse_args()
    main(arguments.frames, arguments.trials, arguments.workers, arguments.namespace, arguments.storage)
