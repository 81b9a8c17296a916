"""Workers of this machine: processes that share memory with the learner, or the learner's own thread.

The learner's side is `ProcessesTransport`: a `Supervisor` starts, watches and replaces processes, with a `WorkerHandle`
for each incarnation. Control (`control_block`) and weights (`weights`) lie in shared memory; batches come through it,
too, and messages over a socket. `worker_main` is the program in a worker process; `inline` needs no process at all.
"""
