"""From a request to what a model is shown: prompt templates, history, items, media."""
