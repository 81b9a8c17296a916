from typing import Any
from rollfleet.plain_tensors.untranslated import Untranslated
def translate_policy(policy: Any) -> Any:
    return Untranslated("not yet")
