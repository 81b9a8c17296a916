"""TorchRL's collectors, by their names and with their arguments, over Rollfleet's workers.

`from torchrl.collectors import Collector` becomes `from rollfleet.torchrl import Collector`, and the program runs as
before: in this process, in processes of this machine, and, with one argument more (`cluster=`, `job=`
or `nats=`), on a fleet. `python -m rollfleet.torchrl program.py` runs a program without any change.

This package translates. `arguments` translates TorchRL's arguments to those of `rollfleet.Collector`, and
`batches` the shape of TorchRL's batches. All collecting is the native collector's. Nothing below imports this package.
"""

from torchrl.collectors import RandomPolicy

from rollfleet.torchrl.distributed import DistributedCollector, DistributedSyncCollector, RayCollector, RPCCollector
from rollfleet.torchrl.processes import AsyncCollector, MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rollfleet.torchrl.single import Collector

SyncDataCollector = Collector
aSyncDataCollector = AsyncCollector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector
RPCDataCollector = RPCCollector

__all__ = [
    "AsyncCollector",
    "Collector",
    "DistributedCollector",
    "DistributedDataCollector",
    "DistributedSyncCollector",
    "DistributedSyncDataCollector",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "RPCCollector",
    "RPCDataCollector",
    "RandomPolicy",
    "RayCollector",
    "SyncDataCollector",
    "aSyncDataCollector",
]
