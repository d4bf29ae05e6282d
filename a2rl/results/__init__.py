"""The outputs of a run: its report, its MLflow runs and its verification."""
