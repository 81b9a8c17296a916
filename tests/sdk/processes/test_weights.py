"""Weights in shared memory: the slots of versions, and the locks that guard them."""

import multiprocessing
import threading
from typing import Any

import numpy as np
import torch

from rollfleet.processes.control_block import WeightsLocation
from rollfleet.processes.weights import SharedWeights, SharedWeightsInbox
from rollfleet.weights.layout import POLICY, WeightLayout

FORK = multiprocessing.get_context("fork")


def layout_of(value: float = 0.0, numbers: int = 3) -> tuple[WeightLayout, dict[str, dict[str, torch.Tensor]]]:
    models = {POLICY: {"w": torch.full((numbers,), value)}}
    return WeightLayout(models), models


def put(
    shared_weights: SharedWeights, version: int, in_use: list[WeightsLocation], numbers: int = 3
) -> WeightsLocation:
    layout, models = layout_of(float(version), numbers)
    return shared_weights.put(version, layout, models, [location.data_at for location in in_use])


def test_slots_of_weights_are_reused() -> None:
    shared_weights = SharedWeights()
    newest = put(shared_weights, 1, [])
    slots = {newest.data_at}
    for version in range(2, 50):
        newest = put(shared_weights, version, [newest])
        slots.add(newest.data_at)
    assert len(slots) == 2
    other = put(shared_weights, 50, [newest], numbers=5000)
    assert other.data_at not in slots


def test_version_is_not_overwritten_while_a_worker_loads_it() -> None:
    shared_weights = SharedWeights()
    first = put(shared_weights, 1, [])
    holds, go_on = FORK.Event(), FORK.Event()
    ours, theirs = FORK.Pipe()

    def load() -> None:
        layout, _ = layout_of()
        location = [first]
        inbox = SharedWeightsInbox(shared_weights.shared_memory, layout, lambda: location[0])
        held = inbox.newest()
        assert held is not None
        holds.set()
        go_on.wait(20)
        theirs.send(held.data.view(np.float32)[:3].tolist())
        inbox.release()
        theirs.send("released")
        go_on.clear()
        go_on.wait(20)

    worker = FORK.Process(target=load)
    worker.start()
    try:
        assert holds.wait(20)
        newest, slots = first, set()
        for version in range(2, 20):
            newest = put(shared_weights, version, [newest])
            slots.add(newest.data_at)
        assert first.data_at not in slots
        go_on.set()
        assert ours.recv() == [1.0, 1.0, 1.0]
        assert ours.recv() == "released"
        for version in range(20, 23):
            newest = put(shared_weights, version, [newest])
            slots.add(newest.data_at)
        assert first.data_at in slots
    finally:
        worker.kill()
        worker.join()


def test_worker_that_dies_while_loading_holds_no_lock() -> None:
    shared_weights = SharedWeights()
    first = put(shared_weights, 1, [])
    holds = FORK.Event()

    def load() -> None:
        layout, _ = layout_of()
        SharedWeightsInbox(shared_weights.shared_memory, layout, lambda: first).newest()
        holds.set()
        threading.Event().wait(20)

    worker = FORK.Process(target=load)
    worker.start()
    assert holds.wait(20)
    second = put(shared_weights, 2, [first])
    worker.kill()
    worker.join()
    assert put(shared_weights, 3, [second]).data_at == first.data_at


def test_version_that_is_replaced_before_its_lock_is_not_loaded() -> None:
    shared_weights = SharedWeights()
    location = [put(shared_weights, 1, [])]
    layout, _ = layout_of()
    asked = 0

    def newest() -> WeightsLocation:
        nonlocal asked
        asked += 1
        if asked == 2:  # between reading the location and locking it
            location[0] = put(shared_weights, 2, location)
        return location[0]

    weights = SharedWeightsInbox(shared_weights.shared_memory, layout, newest).newest()
    assert weights is not None
    assert weights.version == 2
    assert weights.data.view(np.float32)[:3].tolist() == [2.0, 2.0, 2.0]


def test_worker_does_not_wait_for_a_slot_that_the_learner_writes() -> None:
    shared_weights = SharedWeights()
    first = put(shared_weights, 1, [])
    newest = put(shared_weights, 2, [first])
    ours, theirs = FORK.Pipe()
    workers = []

    class Slow(WeightLayout):
        def snapshot(self, models: Any, into: Any = None) -> Any:
            workers.append(FORK.Process(target=load))
            workers[0].start()
            assert ours.poll(20)
            return super().snapshot(models, into)

    def load() -> None:
        asked = iter([first, first])
        inbox = SharedWeightsInbox(shared_weights.shared_memory, layout_of()[0], lambda: next(asked, newest))
        weights = inbox.newest()
        theirs.send(weights and (weights.version, weights.data.view(np.float32)[:3].tolist()))

    models = {POLICY: {"w": torch.full((3,), 3.0)}}
    try:
        assert shared_weights.put(3, Slow(models), models, [newest.data_at]).data_at == first.data_at
        assert ours.recv() == (2, [2.0] * 3)
    finally:
        workers[0].kill()
        workers[0].join()
