"""Add a file to a vector store, search it, and let a model search and cite it."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)

store = client.vector_stores.create(name="Handbook")
client.vector_stores.files.upload_and_poll(
    vector_store_id=store.id,
    file=("refunds.md", b"Refunds are paid within two weeks."),
    poll_interval_ms=50,
)
result = client.vector_stores.search(store.id, query="When are refunds paid?").data[0]
print(f"searching finds {result.filename} (score {result.score}): {result.content[0].text}")

# A real model needs no script: just ask your question.
turns = [
    {"call": "file_search", "args": {"queries": ["refunds"]}},
    {"say": "Within two weeks 【0:0†refunds.md】."},
]
response = client.responses.create(
    model="scripted-chat",
    input=f"@@script {json.dumps(turns)}",
    tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
    include=["file_search_call.results"],
)
search, message = response.output
[citation] = message.content[0].annotations
print("the model searched for:", *search.queries)
print("and says:", message.content[0].text)
print("citing:  ", citation.filename)
