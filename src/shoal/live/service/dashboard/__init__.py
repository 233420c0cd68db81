"""The page at `/`: who shares with whom, and whether it pays. `routes` is what the service mounts."""

from shoal.live.service.dashboard.handlers import routes

__all__ = ["routes"]
