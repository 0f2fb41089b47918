"""What `serve` is asked: where it listens, whom it answers, and how much of everything."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServeSettings:
    """Where and for whom a policy is served, and the caps on what clients can take."""

    rule: str | None = None
    """How SaFormer decides: feasible (its default), paper (Algorithm 1) or none (no critic)."""
    rate: float | None = None
    """Withhold as much of each limit as `calibrate` showed this violation rate (0.05) to need."""
    shield: bool = False
    """Make actions cheaper where they would pass the limit (see docs/shield.md)."""
    floor: tuple[float, ...] = ()
    """For the shield: what some action costs at most in every state."""
    host: str = "127.0.0.1"
    """Address to listen at. Any but this machine's own needs --tokens."""
    port: int = 8000
    """Port to listen at; 0: any that is free."""
    accounts: Path | None = None
    """Folder of accounts and of the audit log; by default runs/serve-NAME. The same folder goes on
    with the sessions that are in it."""
    tokens: Path | None = None
    """File of tokens that clients must show, a line each: NAME TOKEN."""
    certificate: Path | None = None
    """PEM file of a certificate chain, for TLS."""
    key: Path | None = None
    """PEM file of the certificate's key."""
    sessions: int = 256
    """Sessions at once. One that has been idle makes room for another, and is taken up again."""
    idle: float = 60.0
    """Seconds after which a session counts as idle."""
    kept: int = 100_000
    """Accounts that are kept on disk; beyond it the oldest that have ended are forgotten."""
    keep_days: float = 30.0
    """Days after which an account that nobody touched is forgotten."""
    connections: int = 512
    """Connections at once."""
    request_rate: float = 2000.0
    """Requests a second from one address."""
    frame_bytes: int = 1 << 18
    """Largest frame or body."""
    patience: float = 10.0
    """Seconds for a client to send a whole request or to take an answer, and for a decision."""
    silence: float = 600.0
    """Seconds without a request after which a websocket is closed; its session stays."""
    together: int = 64
    """Most sessions that are decided in one batch."""
    audit_bytes: int = 1 << 26
    """Size at which the audit log begins a new file."""
    audit_files: int = 8
    """Audit files that are kept beside the one that is written."""

    def __post_init__(self) -> None:
        for name in ("sessions", "kept", "connections", "together", "frame_bytes", "audit_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("idle", "keep_days", "request_rate", "patience", "silence"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must lie from 0 to 65535, got {self.port}")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both files: give --certificate and --key, or neither")
        if not self.is_local and self.tokens is None:
            raise ValueError(
                f"{self.host} can be reached from other machines: name a file of tokens with "
                "--tokens, or listen at 127.0.0.1"
            )

    @property
    def is_local(self) -> bool:
        """Whether no other machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
