#!/usr/bin/env bash
cd code
python first.py --epochs 1 && python second.py
