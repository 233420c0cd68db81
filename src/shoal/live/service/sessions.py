"""Who is signed in: by a browser's cookie that stands for a key, or because a proxy says so.

A cookie holds the key's id and its expiry, signed with a secret of this process.

Restarting the server signs every browser out, unless SHOAL_SESSION_SECRET sets the secret, as several servers
need in order to accept each other's cookies. Revoking a key signs its browsers out at once: the key is looked
up at each request.
"""

import base64
import hashlib
import hmac
import secrets
import time
from typing import NamedTuple

COOKIE = "shoal_session"
LONGEST = 12 * 3600.0
"""Seconds."""
SHORTEST_SECRET = 32
"""Characters."""


class Proxy(NamedTuple):
    """A proxy that signs users in, by OpenID Connect for example, and names them in a header."""

    addresses: frozenset[str]
    """Where its requests come from. The header of any other caller is ignored."""
    header: bytes
    """In lower case."""


class Sessions:
    """See the module.

    Parameters
    ----------
    secret : str, optional
        Shared by all servers that should accept each other's cookies.
    """

    def __init__(self, secret: str | None = None) -> None:
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise ValueError(
                f"SHOAL_SESSION_SECRET must have at least {SHORTEST_SECRET} characters, got {len(secret)}"
            )
        self._secret = secrets.token_bytes(32) if secret is None else secret.encode()

    def begin(self, key: str, *, is_secure: bool) -> str:
        """The Set-Cookie header that signs in with the key of this id."""
        text = f"{key}.{int(time.time() + LONGEST)}"
        return self._header(f"{text}.{self._sign(text)}", int(LONGEST), is_secure)

    def end(self, *, is_secure: bool) -> str:
        """The Set-Cookie header that signs out."""
        return self._header("", 0, is_secure)

    def key(self, header: bytes) -> str | None:
        """The id of the key that a Cookie header stands for."""
        # Parsed by hand: the standard library's parser takes seconds for a stranger's 60 kB of quotes.
        pairs = (pair.strip().partition("=") for pair in header.decode("latin-1").split(";"))
        given = {name: value for name, _, value in pairs}
        text, _, signature = given.get(COOKIE, "").rpartition(".")
        key, _, until = text.partition(".")
        if not hmac.compare_digest(self._sign(text).encode(), signature.encode()):
            return None
        return key if time.time() < int(until) else None

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._secret, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    @staticmethod
    def _header(value: str, seconds: int, is_secure: bool) -> str:
        secure = "; Secure" if is_secure else ""
        return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
