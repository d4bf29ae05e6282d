"""How MLflow's pages show a suite: as the training of models, and with a saved view, `Results`, of its runs.

The view is a tag of the experiment, in the form in which MLflow's pages save views. It lists the runs without launches
and submissions, by their gain; its charts draw the scores over the seconds of the budget.
"""

import json

KEY = "a2rl-results"
COLUMNS = (
    "params.`agent`", "params.`driver`", "params.`task`", "params.`mode`", "metrics.`score`", "metrics.`gain`",
    "tags.`verdict`", "tags.`validity`",
)  # fmt: skip
_STATE = {
    "selectedColumns": COLUMNS,
    "columnOrder": COLUMNS,
    "searchFilter": "tags.`a2rl.run_id` LIKE '%'",
    "orderByKey": "metrics.`gain`",
    "orderByAsc": False,
}
_VIEW = {"name": "Results", "createdAt": 1, "updatedAt": 1, "state": json.dumps(_STATE)}
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    f"mlflow.sharedViewState.{KEY}": json.dumps(_VIEW),
}
"""The tags of an experiment that decide how it is shown."""
TRAINING = "workflowType=machine_learning"
"""In a URL: shows the pages for the training of models, whatever the browser showed last."""


def run_url(server: str, experiment: str, run_id: str) -> str:
    """Returns the page of an MLflow run."""
    return f"{server}/#/experiments/{experiment}/runs/{run_id}?{TRAINING}"


def results_url(server: str, experiment: str) -> str:
    """Returns the page with the results of an experiment."""
    return f"{server}/#/experiments/{experiment}/runs?{TRAINING}&viewStateShareKey={KEY}"
