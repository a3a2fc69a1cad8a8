"""The API's other resources: conversations, containers, files, vector stores, keys, webhooks."""
