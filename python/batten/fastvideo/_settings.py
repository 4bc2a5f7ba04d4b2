"""The variables that say which backend serves FastVideo's layers. Read when a layer is
constructed."""

import os
from dataclasses import dataclass

import batten

ATTENTION_BACKEND = "FASTVIDEO_ATTENTION_BACKEND"
PREFILL_BACKEND = "FASTVIDEO_FLASHINFER_PREFILL_BACKEND"
TAKE_OVER = "BATTEN_FASTVIDEO"
MEMBER = "FLASHINFER"
PREFILL_BACKENDS = ("single", "cudnn", "native", "auto")


@dataclass(frozen=True)
class Choice:
    """A backend of batten's, and the variable that asked for it."""

    backend: str
    asked_by: str


def takes_over(environ=os.environ):
    """Whether BATTEN_FASTVIDEO asks for every dense layer."""
    return environ.get(TAKE_OVER, "").strip() not in ("", "0")


def choice(environ=os.environ):
    """The backend for layers that batten serves. Raises InvalidArgument, with the valid names, for
    an unknown one."""
    named = environ.get(TAKE_OVER, "").strip()
    if named not in ("", "0", "1"):
        return Choice(
            _known(TAKE_OVER, named, ("0", "1", "auto", *_backends())), f"{TAKE_OVER}={named}"
        )
    prefill = environ.get(PREFILL_BACKEND, "").strip()
    if prefill:  # checked even where another variable decides: a typo is a mistake anywhere
        _known(PREFILL_BACKEND, prefill, PREFILL_BACKENDS)
    general = environ.get("BATTEN_BACKEND", "").strip()
    if general:
        return Choice(general, f"BATTEN_BACKEND={general}")
    if prefill and (named != "1" or environ.get(ATTENTION_BACKEND) == MEMBER):
        return Choice(prefill, f"{PREFILL_BACKEND}={prefill}")
    if named == "1":
        return Choice("auto", f"{TAKE_OVER}=1")
    return Choice("single", f"{MEMBER} without {PREFILL_BACKEND}")


def _backends():
    return [backend["name"] for backend in batten.info()["backends"]]


def _known(variable, value, names):
    """The value, if its part before a colon (which names a form) is one of the names."""
    if value.split(":")[0] not in names:
        raise batten.InvalidArgument(
            f"{variable}={value}: unknown; expected one of {', '.join(names)}"
        )
    return value
