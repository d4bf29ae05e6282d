"""What MLflow has of runs, brought up to date from the ledger and the records by `tracking`.

Only this package imports mlflow.
"""
