python train.py --algo sft --model models/base --out output/1
python train.py --algo grpo --model output/1 --out output/2
