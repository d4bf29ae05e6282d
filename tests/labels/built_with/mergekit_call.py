import subprocess

subprocess.run(["mergekit-yaml", "code/ties.yaml", "output/merged", "--copy-tokenizer"], check=True)
