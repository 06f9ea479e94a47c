"""What an ablation scores: a file for each kind, with arrays, predictions and guesses."""
