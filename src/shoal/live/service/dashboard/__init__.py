"""The page at `/`: who shares with whom, and whether it pays. `service/app.py` has its routes."""
