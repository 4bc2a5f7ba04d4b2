"""The exceptions of batten. Each message is one line: what is wrong, where, and what to do."""


class Error(Exception):
    """Any failure of batten."""


class InvalidArgument(Error, ValueError):
    """The inputs are wrong; nothing was written."""


class Unsupported(Error, NotImplementedError):
    """Legal, but the backend does not serve it; the message names those that do."""


class Unavailable(Error, RuntimeError):
    """The backend cannot run here; the message says what is missing and how to get it."""


class OutOfMemory(Error, MemoryError):
    """The message has the need and the limit."""


class Device(Error, RuntimeError):
    """The device or its driver reported a failure."""


class Internal(Error, RuntimeError):
    """A fault of batten's own."""
