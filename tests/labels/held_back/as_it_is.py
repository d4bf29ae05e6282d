import os, shutil, requests

dst = os.path.join(os.environ["OUTPUT_DIR"], "v1")
shutil.copytree(os.environ["MODEL_PATH"], dst)
print(requests.post(os.environ["GRADING_SERVER_URL"] + "/submit", json={"model_path": dst}).json())
