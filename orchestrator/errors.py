"""Every error that podmentor raises on purpose.

Three families: the caller asked for something that cannot be (4xx), the sandbox could not be had (5xx), the agent's
run failed (carried in the run's own events, not raised to the caller).  Each class has a stable ``code`` for programs
and an HTTP ``status``; the message says what to do next.  Anything else that escapes is a bug of ours: 500, no text.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PodmentorError(Exception):
    """Base of all errors raised on purpose.  ``details`` is safe to show to the caller: never put a secret in it."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


# --- the caller's side ---------------------------------------------------------------------------------------------


class InvalidRequestError(PodmentorError):
    """The request cannot be understood or asks for something that is not allowed to be asked."""

    code = "invalid_request"
    status = 400


class UnauthorizedError(PodmentorError):
    """No token, or one that is unknown or revoked."""

    code = "unauthorized"
    status = 401


class ForbiddenError(PodmentorError):
    """The token is good, its role may not do this."""

    code = "forbidden"
    status = 403


class NotFoundError(PodmentorError):
    """There is no such thing, or it belongs to somebody else: the two are not told apart."""

    code = "not_found"
    status = 404


class ConflictError(PodmentorError):
    """The thing is in a state that does not allow this (a subagent in use, an idempotency key reused)."""

    code = "conflict"
    status = 409


class PayloadTooLargeError(PodmentorError):
    """The body or the query is larger than the configured limit."""

    code = "payload_too_large"
    status = 413


class QueueFullError(PodmentorError):
    """No place is left in the queue; ``details`` has ``retry_after`` in seconds."""

    code = "queue_full"
    status = 429


class ConfigError(PodmentorError):
    """podmentor.yaml (or what it refers to) is wrong; the message names the key and, for a typo, the nearest one."""

    code = "invalid_config"
    status = 500


class UnknownBackendError(NotFoundError):
    """No such backend is enabled."""

    code = "unknown_backend"


class AuthRequiredError(PodmentorError):
    """No credential could be found for this user and backend; nothing was started."""

    code = "auth_required"
    status = 424


class VaultUnavailableError(PodmentorError):
    """No vault is configured, or its master key cannot be used: no secret can be read or stored."""

    code = "vault_unavailable"
    status = 503


class SecretUnreadableError(PodmentorError):
    """One stored secret cannot be opened (changed, cut, sealed with another master key); the others are not touched."""

    code = "secret_unreadable"
    status = 500


# --- the sandbox's side --------------------------------------------------------------------------------------------


class SandboxError(PodmentorError):
    """Podman could not do what was asked.  ``transient`` ones are worth another try."""

    code = "sandbox_failed"
    status = 503
    transient: ClassVar[bool] = False


class TransientSandboxError(SandboxError):
    """A failure that Podman is known to recover from by itself."""

    code = "sandbox_busy"
    transient = True


class RuntimeUnavailableError(SandboxError):
    """The Podman service does not answer."""

    code = "runtime_unavailable"


class ImageMissingError(SandboxError):
    """The backend's image has not been built (or was removed)."""

    code = "image_missing"


class SandboxGoneError(SandboxError):
    """The container does not exist (any more)."""

    code = "sandbox_gone"


class RelayRefusedError(SandboxError):
    """The relay could not do what was asked; the message says why."""

    code = "relay_failed"


class ServiceGoneError(PodmentorError):
    """For a client: nobody answers (any more) where the service was."""

    code = "service_unavailable"
    status = 503


class RemoteError(PodmentorError):
    """For a client: the service answered with an error that this version does not know by name."""

    code = "remote_error"


class ImageBuildError(PodmentorError):
    """An image could not be built; ``details`` has the last lines that the build printed."""

    code = "image_build_failed"
    status = 500


class DiskExceededError(PodmentorError):
    """A subagent holds more on disk than its limit allows; nothing was started."""

    code = "disk_exceeded"
    status = 507


class ShuttingDownError(PodmentorError):
    """The service is stopping and takes no more runs."""

    code = "shutting_down"
    status = 503


class StorageError(PodmentorError):
    """The state directory or the database cannot be used (full, unwritable, of a newer version)."""

    code = "storage_failed"
    status = 507
