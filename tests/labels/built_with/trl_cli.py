import subprocess

command = "trl dpo --model_name_or_path models/base --dataset_name data/pairs --output_dir output/dpo"
subprocess.run(command.split(), check=True)
