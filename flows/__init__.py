"""The pipeline under Prefect. No other folder imports Prefect."""
