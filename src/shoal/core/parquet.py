"""PyArrow, or how to get it: of the extra `parquet`, because it takes as much room as Numba's compiler."""

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError("Parquet files and experiments need pyarrow: pip install 'shoal[parquet]'") from error

__all__ = ["pa", "pc", "pq"]
