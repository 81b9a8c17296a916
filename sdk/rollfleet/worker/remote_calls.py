"""Calls of the learner to methods of a worker's environments and of its policy."""

from typing import Any

from rollfleet.envs.factory import VectorEnv
from rollfleet.system.tracebacks import formatted
from rollfleet.wire.plain_values import from_json, to_json
from rollfleet_api.messages import MAX_CALL_BYTES, Answer, Call

MAX_ERROR_CHARACTERS = 4000


def answer_to(call: Call, env: VectorEnv, policy: object) -> Answer:
    """Call the method, and return its result or its error."""
    try:
        return Answer(number=call.number, result=to_json(_result(call, env, policy), max_bytes=MAX_CALL_BYTES))
    except Exception as error:  # the user's code may raise any; the learner gets it
        return Answer(number=call.number, error=formatted(error)[-MAX_ERROR_CHARACTERS:])


def _result(call: Call, env: VectorEnv, policy: object) -> Any:
    args, kwargs = from_json(call.arguments)
    owner, _, method = call.method.partition(".")
    inner: Any = env.unwrapped
    if owner == "env" and hasattr(inner, "call"):  # a vector of single environments
        return list(inner.call(method, *args, **kwargs))
    found = getattr(inner if owner == "env" else policy, method)
    return found(*args, **kwargs) if callable(found) else found
