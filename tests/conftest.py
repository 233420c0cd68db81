"""Settings for all tests: the same hypothesis examples on every run, and no clock on them."""

from hypothesis import settings

settings.register_profile("shoal", deadline=None, derandomize=True)
settings.load_profile("shoal")
