"""The pipeline under Prefect; the only folder that imports it."""
