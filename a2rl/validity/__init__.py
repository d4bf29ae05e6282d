"""Whether a run's result is to be believed: findings with evidence, and the word that follows from them."""
