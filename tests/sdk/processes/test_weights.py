"""Weights in shared memory: where versions lie, and who may write and read there."""

import multiprocessing
import threading

import numpy as np
import torch

from rollfleet.processes.control_block import WeightsLocation
from rollfleet.processes.weights import SharedWeights, SharedWeightsInbox
from rollfleet.weights.layout import POLICY, Snapshot, WeightLayout

FORK = multiprocessing.get_context("fork")


def layout_of(value: float = 0.0, numbers: int = 3) -> tuple[WeightLayout, dict[str, dict[str, torch.Tensor]]]:
    models = {POLICY: {"w": torch.full((numbers,), value)}}
    return WeightLayout(models), models


def put(
    shared_weights: SharedWeights, version: int, in_use: list[WeightsLocation], numbers: int = 3
) -> WeightsLocation:
    layout, models = layout_of(float(version), numbers)
    return shared_weights.put(version, layout.snapshot(models), in_use)


def test_places_of_weights_are_used_again() -> None:
    shared_weights = SharedWeights()
    newest = put(shared_weights, 1, [])
    places = {newest.data_at}
    for version in range(2, 50):
        newest = put(shared_weights, version, [newest])
        places.add(newest.data_at)
    assert len(places) == 2
    other = put(shared_weights, 50, [newest], numbers=5000)
    assert other.data_at not in places


def test_a_version_that_a_worker_loads_is_not_written_over() -> None:
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
        inbox.let_go()
        theirs.send("let go")
        go_on.clear()
        go_on.wait(20)

    worker = FORK.Process(target=load)
    worker.start()
    try:
        assert holds.wait(20)
        newest, places = first, set()
        for version in range(2, 20):
            newest = put(shared_weights, version, [newest])
            places.add(newest.data_at)
        assert first.data_at not in places
        go_on.set()
        assert ours.recv() == [1.0, 1.0, 1.0]
        assert ours.recv() == "let go"
        for version in range(20, 23):
            newest = put(shared_weights, version, [newest])
            places.add(newest.data_at)
        assert first.data_at in places
    finally:
        worker.kill()
        worker.join()


def test_a_worker_that_dies_while_it_loads_holds_nothing() -> None:
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


def test_a_version_that_was_overtaken_before_it_was_locked_is_not_loaded() -> None:
    shared_weights = SharedWeights()
    location = [put(shared_weights, 1, [])]
    layout, _ = layout_of()
    asked = 0

    def newest() -> WeightsLocation:
        nonlocal asked
        asked += 1
        if asked == 2:  # between the look and the lock
            location[0] = put(shared_weights, 2, location)
        return location[0]

    weights = SharedWeightsInbox(shared_weights.shared_memory, layout, newest).newest()
    assert weights is not None
    assert weights.version == 2
    assert weights.data.view(np.float32)[:3].tolist() == [2.0, 2.0, 2.0]


def lend(shared_weights: SharedWeights, version: int, in_use: list[WeightsLocation]) -> Snapshot:
    """A version that was made where it is to lie."""
    layout, models = layout_of(float(version))
    lent = shared_weights.lend(layout.parameters, layout.total_bytes, in_use)
    assert lent is not None
    layout.release(lent)
    return layout.snapshot(models)


def read(shared_weights: SharedWeights, location: WeightsLocation) -> list[float]:
    """As a worker does; it holds the version."""
    weights = SharedWeightsInbox(shared_weights.shared_memory, layout_of()[0], lambda: location).newest()
    assert weights is not None
    values: list[float] = weights.data.view(np.float32)[:3].tolist()
    return values


def test_a_version_that_was_made_in_memory_that_was_lent_is_read_there() -> None:
    shared_weights, in_use = SharedWeights(), list[WeightsLocation]()
    for version in range(1, 6):
        snapshot = lend(shared_weights, version, in_use)
        assert shared_weights.is_lent(snapshot)
        location = shared_weights.put(version, snapshot, in_use)
        assert not shared_weights.is_lent(snapshot)
        assert read(shared_weights, location) == [float(version)] * 3
        snapshot.data[:4].view(torch.float32).fill_(-1.0)  # it is the very memory
        assert read(shared_weights, location) == [-1.0, version, version]
        in_use = [location]


def test_what_was_lent_is_nobodys_else_until_it_comes_back() -> None:
    shared_weights = SharedWeights()
    layout, models = layout_of(7.0)
    lent = lend(shared_weights, 1, [])
    assert shared_weights.lend(layout.parameters, layout.total_bytes, []) is None
    places = {shared_weights.put(version, layout.snapshot(models), []).data_at for version in range(2, 6)}
    location = shared_weights.put(6, lent, [])
    assert location.data_at not in places
    assert read(shared_weights, location) == [1.0] * 3
    assert shared_weights.lend(layout.parameters, layout.total_bytes, [location]) is not None


def test_a_worker_does_not_wait_for_a_place_that_the_learner_writes() -> None:
    shared_weights = SharedWeights()
    first = put(shared_weights, 1, [])
    newest = put(shared_weights, 2, [first])
    written = lend(shared_weights, 3, [newest])  # where the first lay
    asked = iter([first, first])
    ours, theirs = FORK.Pipe()

    def load() -> None:
        inbox = SharedWeightsInbox(shared_weights.shared_memory, layout_of()[0], lambda: next(asked, newest))
        weights = inbox.newest()
        theirs.send(weights and (weights.version, weights.data.view(np.float32)[:3].tolist()))

    worker = FORK.Process(target=load)
    worker.start()
    try:
        assert ours.poll(20)
        assert ours.recv() == (2, [2.0] * 3)
        assert shared_weights.put(3, written, [newest]).data_at == first.data_at
    finally:
        worker.kill()
        worker.join()
