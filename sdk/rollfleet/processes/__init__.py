"""Workers on this machine: processes that share memory with the learner, or the learner's own thread.

The learner's side is `ProcessesTransport`: a `Supervisor` starts, watches and restarts processes, with a `WorkerHandle`
for each incarnation. Instructions (`control_block`), weights and batches lie in shared memory; messages go over a
socket. `launch` starts `worker_main`, the program of a worker process. `inline` needs no process at all.
"""
