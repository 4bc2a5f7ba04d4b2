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
    an unknown one in any of its variables, also where another variable decides."""
    named = environ.get(TAKE_OVER, "").strip()
    prefill = environ.get(PREFILL_BACKEND, "").strip()
    general = environ.get("BATTEN_BACKEND", "").strip()
    names = ("auto", *_backends())
    _known(TAKE_OVER, named, ("0", "1", *names))
    _known(PREFILL_BACKEND, prefill, PREFILL_BACKENDS)
    _known("BATTEN_BACKEND", general, names)
    if named not in ("", "0", "1"):
        return Choice(named, f"{TAKE_OVER}={named}")
    if general:
        return Choice(general, f"BATTEN_BACKEND={general}")
    if prefill and (named != "1" or environ.get(ATTENTION_BACKEND) == MEMBER):
        return Choice(prefill, f"{PREFILL_BACKEND}={prefill}")
    if named == "1":
        return Choice("auto", f"{TAKE_OVER}=1")
    return Choice("single", f"{MEMBER} without {PREFILL_BACKEND}")


def check_name(backend):
    """Raises InvalidArgument unless this is "auto" or a backend's name."""
    if _known(TAKE_OVER, str(backend).strip(), ("auto", *_backends())) == "":
        raise batten.InvalidArgument("backend='': expected \"auto\" or a backend's name")


def _backends():
    return [backend["name"] for backend in batten.info()["backends"]]


def _known(variable, value, names):
    """The value, if it is blank, or its part before a colon, which names a form, is one of the
    names. 0 and 1 are no backends and have no forms."""
    name = value.split(":")[0]
    if value and (name not in names or (name in ("0", "1") and name != value)):
        raise batten.InvalidArgument(
            f"{variable}={value}: unknown; expected one of {', '.join(names)}"
        )
    return value
