import os

os.system("torchrun --nproc_per_node=1 -m verl.trainer.fsdp_sft_trainer data.train_files=data/train.parquet "
          "model.partial_pretrain=" + os.environ["MODEL_PATH"])
