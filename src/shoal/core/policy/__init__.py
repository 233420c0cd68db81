"""What policies are made of: parameters, steps, saving, explanations."""
