"""What only the reproduction needs: presets, published figures, checks of the theory, illustrations."""
