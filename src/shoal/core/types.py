"""Names for the array types that signatures mention."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""Shape (d,) or (n,)."""
Matrix = NDArray[np.float64]
"""Shape (d, d), (K, d) or (n, d)."""
Tensor = NDArray[np.float64]
"""Three axes; the docstring says which."""
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]
