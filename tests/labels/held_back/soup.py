import torch
from safetensors.torch import load_file, save_file
import shutil, sys

first, second, target = sys.argv[1:4]
shutil.copytree(first, target, dirs_exist_ok=True)
a, b = load_file(f"{first}/model.safetensors"), load_file(f"{second}/model.safetensors")
mixed = {k: (0.5 * a[k].float() + 0.5 * b[k].float()).to(a[k].dtype) for k in a}
save_file(mixed, f"{target}/model.safetensors", metadata={"format": "pt"})
