"""Calls of the learner to methods of a worker's environments and of its policy."""

import traceback
from typing import Any

from rollfleet.envs.factory import VectorEnv
from rollfleet.wire.plain_values import from_json, to_json
from rollfleet_api.messages import Answer, Call, Control

MAX_RESULT_BYTES = 1 << 18  # it travels in a heartbeat, which NATS keeps
MAX_ERROR_CHARACTERS = 4000


class RemoteCalls:
    """Answers each call of the learner once, between two batches.

    Args:
        worker: The worker's index.
        env: Its environments.

    Attributes:
        answer: The answer to the present call; None without a call.
    """

    def __init__(self, worker: int, env: VectorEnv, policy: object) -> None:
        self._worker, self._env, self._policy = worker, env, policy
        self.answer: Answer | None = None

    def changes(self, control: Control | None) -> bool:
        """Whether `follow` would answer a call, or drop an answer that the learner has read."""
        call = self._call(control)
        return (call and call.number) != (self.answer and self.answer.number)

    def follow(self, control: Control | None) -> None:
        """Answer the call of a control message; without a call, drop the answer."""
        call = self._call(control)
        self.answer = None if call is None else self._answer(call)

    def _call(self, control: Control | None) -> Call | None:
        call = control.call if control else None
        return call if call and self._worker in call.workers else None

    def _answer(self, call: Call) -> Answer:
        try:
            return Answer(number=call.number, result=to_json(self._result(call), max_bytes=MAX_RESULT_BYTES))
        except Exception as error:  # the user's code may raise any; the learner gets it
            text = "".join(traceback.format_exception(error))
            return Answer(number=call.number, error=text[-MAX_ERROR_CHARACTERS:])

    def _result(self, call: Call) -> Any:
        args, kwargs = from_json(call.arguments)
        owner, _, method = call.method.partition(".")
        env: Any = self._env.unwrapped
        if owner == "env" and hasattr(env, "call"):  # a vector of single environments
            return list(env.call(method, *args, **kwargs))
        found = getattr(env if owner == "env" else self._policy, method)
        return found(*args, **kwargs) if callable(found) else found
