"""The page at `/`: who shares with whom, and whether it pays. `routes` in routes.py is all that others need."""
