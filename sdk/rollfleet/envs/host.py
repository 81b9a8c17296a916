"""The program of an environment server: it holds environments for vectors on other hosts."""

import math
import multiprocessing
import os
import pickle
import select
import signal
import socket
import ssl
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from rollfleet.arguments import shown
from rollfleet.envs.array_pipe import ArrayPipe, tls
from rollfleet.envs.remote import ANSWER_S, GREETING
from rollfleet.envs.server import SharedArrays, answer_requests, prepare
from rollfleet.envs.server_process import GRACE_S
from rollfleet.errors import JobInvalid
from rollfleet.system.child_processes import close_in_children, die_with
from rollfleet_api.exit_codes import EXIT_TERMINATED

_LOOK_S: Final = 1.0
_MOST_REFUSED: Final = 60  # vectors in a row, one a second
_LEAVES_WITHIN_S: Final = 25.0  # Kubernetes kills a pod after 30 s
_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)  # Linux has the first


def host(port: int, certificate: str | Path, *, idle_timeout_s: float = 0.0) -> None:
    """Hold the environments of those vectors that connect, each in a process, until SIGINT or SIGTERM.

    A vector sends the functions that make its environments: who has the certificate runs programs here. At SIGTERM it
    takes no more vectors, and ends with exit code 143 once those that it has are gone: a worker's pod ends together
    with those of its servers, and still takes a last step.

    Args:
        port: 0 takes a free one.
        certificate: See `tls`.
        idle_timeout_s: It returns once no vector has been connected for this long; 0: never.

    Raises:
        JobInvalid: The certificate cannot be used, or the port is taken.
    """
    context = tls(Path(certificate), serves=True)
    family = socket.AF_INET6 if (dual := socket.has_dualstack_ipv6()) else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise JobInvalid(f"port: {port} cannot be used: {error}") from error
    print(f"environment server: listens on port {listener.getsockname()[1]}", flush=True)
    with suppress(KeyboardInterrupt):
        if not _accept(listener, context, idle_timeout_s):
            sys.exit(EXIT_TERMINATED)


@dataclass(slots=True, eq=False)
class _Served:
    """A vector's process and connection.

    Attributes:
        closes: Whether the process closes its environments, a shared byte.
        since_s: The time when it connected.
        until_s: The time when the process is killed, unless it closes; infinite: its vector is there.
    """

    process: BaseProcess
    stream: socket.socket
    closes: Any
    since_s: float
    until_s: float = math.inf


def _accept(listener: socket.socket, context: ssl.SSLContext, idle_timeout_s: float) -> bool:
    """Start a process for each vector that connects, until SIGTERM. One whose vector is gone has `GRACE_S` to end.

    Returns whether it ended before SIGTERM, because none was connected. A connection of less than a second is a probe.
    """
    fork, parent, poll = multiprocessing.get_context("fork"), os.getpid(), select.poll()
    served: list[_Served] = []
    used_s, refused = time.monotonic(), 0
    terminated: list[float] = []  # with the time when it leaves at the latest
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic() + _LEAVES_WITHIN_S))
    poll.register(listener, select.POLLIN)
    close_in_children(listener)
    while not terminated or (served and time.monotonic() < terminated[0]):
        if terminated and listener.fileno() >= 0:
            poll.unregister(listener)
            listener.close()
        ready, now_s = dict(poll.poll(1000 * _LOOK_S)), time.monotonic()
        if any(now_s - each.since_s >= _LOOK_S for each in served):
            used_s = now_s
        elif idle_timeout_s and not served and now_s - used_s >= idle_timeout_s:
            return True
        for each in [*served]:
            if each.process.sentinel in ready or not each.process.is_alive():  # what it started may hold the sentinel
                poll.unregister(each.process.sentinel)
                if each.until_s == math.inf:
                    poll.unregister(each.stream)
                each.stream.close()  # as long as it is open here, the vector does not notice
                each.process.join()
                served.remove(each)
            elif each.stream.fileno() in ready:
                poll.unregister(each.stream)
                each.until_s = time.monotonic() + GRACE_S
            elif time.monotonic() >= each.until_s + (_LEAVES_WITHIN_S if each.closes.value else 0):
                each.process.kill()  # its environment hangs in a step, or in its end
        if listener.fileno() in ready:
            try:
                closes = fork.RawValue("b", 0)
                stream, peer = listener.accept()
                with ExitStack() as undone:
                    undone.callback(stream.close)
                    started = fork.Process(target=_hold, args=(stream, context, peer[0], parent, closes), daemon=True)
                    started.start()
                    undone.pop_all()
                refused = 0
            except OSError as error:  # no descriptor, or no process, is left: the vector connects again
                refused += 1
                if refused > _MOST_REFUSED:  # a process that could not be forked leaves descriptors
                    raise
                print(f"environment server: takes no vector now: {error}", flush=True)
                time.sleep(_LOOK_S)
                continue
            close_in_children(stream)
            poll.register(started.sentinel, select.POLLIN)
            poll.register(stream, _HUNG_UP)
            served.append(_Served(started, stream, closes, now_s))
    return False


def _hold(stream: socket.socket, context: ssl.SSLContext, peer: str, parent: int, closes: Any) -> None:
    die_with(parent)
    prepare()
    stream.settimeout(ANSWER_S)
    try:
        if not stream.recv(1, socket.MSG_PEEK):  # it only asks whether the port is open, as Kubernetes does
            return
        stream = context.wrap_socket(stream, server_side=True)
        pipe = ArrayPipe(stream, serves=True)
        message = pipe.recv_bytes()
    except OSError as error:
        print(f"environment server: refused {peer}: {error}", flush=True)
        return
    stream.settimeout(None)
    greeting, _, setup = message.partition(b"\n")
    try:
        if greeting + b"\n" != GREETING:
            raise ValueError(f"the vector says {shown(greeting.decode())}, and this server, {shown(GREETING.decode())}")
        makers, observation_space, action_space = pickle.loads(setup)
        shared = SharedArrays(observation_space, action_space, len(makers))
    except Exception as error:
        print(f"environment server: {peer}: {error}", flush=True)
        pipe.send_bytes(f"its environments cannot be made there: {type(error).__name__}: {error}".encode())
        return
    print(f"environment server: {peer}: {len(makers)} environments", flush=True)
    pipe.send_bytes(b"")
    everyone = slice(None)
    observations, actions, outcomes = shared.views(everyone)
    pipe.carry(sent=[*observations, *outcomes], received=actions)
    answer_requests(partial(list, makers), shared, everyone, pipe, partial(setattr, closes, "value", 1))
    print(f"environment server: {peer}: closed", flush=True)
