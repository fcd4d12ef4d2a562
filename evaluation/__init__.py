"""Score matrices -> recall, folds, reranking, explanations, reports."""
