"""One exception per defect; all of them are a `SparsewireError`.

Errors that come from a wrong argument are also a `ValueError`, so code that knows nothing of sparsewire can
catch them.
"""


class SparsewireError(Exception):
    """Anything that sparsewire itself raises."""


class SchemeError(SparsewireError, ValueError):
    """A scheme that cannot be read: unknown name, wrong argument, bad syntax."""


class RegistryError(SparsewireError, ValueError):
    """A codec that cannot be registered: its id is taken or its class breaks the contract."""


class InputError(SparsewireError, ValueError):
    """An array that cannot be compressed (unknown dtype, wrong shape, indices out of order), or a wrong setting."""


class FrameError(SparsewireError, ValueError):
    """Bytes that are not a frame this version can read."""


class TruncatedFrame(FrameError):
    """The bytes end before the frame does."""


class ChecksumError(FrameError):
    """The checksum does not match the bytes."""


class UnknownVersion(FrameError):
    """The frame was written by a version of the format that this one does not know."""


class UnknownCodec(FrameError):
    """The frame names a codec that is not installed here."""


class HeaderError(FrameError):
    """A header field has a value that no encoder writes."""


class SectionError(FrameError):
    """A codec's section contradicts the header or itself."""


class LimitExceeded(FrameError):
    """The frame promises more than the caller allowed; `setting` names the cap that a caller may raise."""

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class CommError(SparsewireError):
    """A collective that failed: the engine reported an error, or the communicator is closed."""


class CommArgumentError(CommError, ValueError):
    """A collective called with something it cannot carry: unknown rank, dtype or operation."""


class CommMismatch(CommError):
    """The ranks did not call the same collective."""


class CommTimeout(CommError, TimeoutError):
    """A rank did not arrive in time."""


class PeerFailed(CommError):
    """Another rank failed first, so this one's collective can never end."""


class PeerError(FrameError):
    """A peer sent bytes that are not the frame that was due; every rank raises it and names the peer."""


class StaleBase(SparsewireError):
    """A federated client and the server do not stand at the same round; says how the client is brought up to date."""


class UpdateRefused(SparsewireError, ValueError):
    """A federated client's update that is not counted. Nothing has changed, and the round goes on."""

    def __init__(self, client: object, reason: str) -> None:
        super().__init__(f"client {client!r}: {reason}")
        self.client, self.reason = client, reason


def add_note(error: BaseException, note: str) -> None:
    """Says more about an error without changing what it is; a traceback shows it from Python 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]


class AccuracyWarning(UserWarning):
    """A combination that is known to cost accuracy."""
