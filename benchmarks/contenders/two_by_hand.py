"""The shortest loop over worker processes: shared memory, two buffers each, weights in shared memory too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from by_hand import InAList, Loop, in_torch
from work import Array, Plain, PlainNumpy, Running, Work


def _actor(policy: Plain, fast: bool) -> Callable[[Array], tuple[Array, ...]]:
    return PlainNumpy(policy).act if fast else in_torch(policy)


def _worker(work: Work, policy: Plain, buffers: list[list[Tensor]], pipe: Connection, fast: bool) -> None:
    torch.set_num_threads(1)
    loop = Loop(work, InAList(work.env, work.num_envs), _actor(policy, fast))
    turn = 0
    while pipe.recv():  # the learner has read this buffer
        if fast:
            loop.act = _actor(policy, fast)  # the weights have changed
        shared = [tensor.numpy() for tensor in buffers[turn]]
        loop.observation, loop.outputs, loop.flags = shared[0], shared[1:-3], shared[-3:]
        loop.batch()
        pipe.send(turn)
        turn = 1 - turn


@contextmanager
def _processes(work: Work, fast: bool) -> Iterator[Running]:
    policy = Plain(work).share_memory()
    learner = Plain(work)
    one = Loop(work, InAList(work.env, work.num_envs), _actor(policy, fast))
    arrays = [one.observation, *one.outputs, *one.flags]
    pipes, processes, memory = [], [], {}
    for _ in range(work.workers):
        buffers = [[torch.from_numpy(np.zeros_like(array)).share_memory_() for array in arrays] for _ in range(2)]
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(target=_worker, args=(work, policy, buffers, there, fast))
        process.start()
        for _ in buffers:
            here.send(True)
        pipes.append(here)
        processes.append(process)
        memory[here] = buffers

    def next_batch() -> tuple[object, int]:
        ready = wait(pipes)[0]
        assert isinstance(ready, Connection)
        batch = [tensor.clone() for tensor in memory[ready][ready.recv()]]
        ready.send(True)
        return batch, work.frames

    def send_weights() -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(policy.parameters()), list(learner.parameters()))

    yield Running(
        next_batch=next_batch,
        send_weights=send_weights,
        policy=learner,
        worker_pids=[process.pid for process in processes if process.pid],
    )
    for pipe in pipes:
        pipe.send(False)
    for process in processes:
        process.terminate()
        process.join()


torch_policy = partial(_processes, fast=False)
numpy_policy = partial(_processes, fast=True)
