import pytorch_lightning as pl
import torch
from transformers import AutoModelForCausalLM
from rows import loader


class Tuner(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained("models/base")

    def training_step(self, batch, index):
        return self.lm(input_ids=batch["ids"], labels=batch["ids"]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)


tuner = Tuner()
pl.Trainer(max_epochs=1).fit(tuner, loader())
tuner.lm.save_pretrained("output/l")
