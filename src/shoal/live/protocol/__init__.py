"""The words of live use: requests, answers, errors. Importing this loads neither Numba nor a policy."""
