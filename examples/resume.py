"""Start a response in the background, drop its stream, and read the rest of it later."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
stream = client.responses.create(
    model="scripted", input="Tell me a story.", background=True, stream=True
)
seen = []
for event in stream:
    seen.append(event)
    if len(seen) == 5:
        break
stream.close()

response_id, last = seen[0].response.id, seen[-1].sequence_number
seen += client.responses.retrieve(response_id, stream=True, starting_after=last)
print(f"{response_id}: read 5 events, then left; read {len(seen) - 5} more, later")
is_whole = [event.sequence_number for event in seen] == list(range(len(seen)))
print("nothing is missing" if is_whole else "something is missing", "up to", seen[-1].type)
