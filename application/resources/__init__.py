"""The API's resources other than responses: conversations, containers, files, vector stores,
API keys, quotas and webhooks."""
