"""Decisions over HTTP: the controller behind an API with keys, metrics and a page (extra `serve`)."""
