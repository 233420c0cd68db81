"""The laboratory: environments to play in, rivals to play against, experiments."""
