"""From a parquet file to batches of windows."""
