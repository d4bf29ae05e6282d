def numeric(completions, gold, **kwargs):
    return [float(c.strip().endswith(g)) for c, g in zip(completions, gold)]
