import os, subprocess

os.chmod("code/trainer", 0o755)
subprocess.check_call(["code/trainer", "--model", os.environ["MODEL_PATH"], "--out", "output/x", "--steps", "500"])
