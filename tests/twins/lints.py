"""Naive twin of LinTS."""

from tests import reference


class LinTS(reference.Independent):
    """Thompson sampling for each agent."""

    exploration = "sample"
