"""People's own logs: CSV and Parquet files with one row per step."""
