"""Start a background response, close its stream, and read the rest later."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
stream = client.responses.create(
    model="scripted", input="Tell me a story.", background=True, stream=True
)
events = []
for event in stream:
    events.append(event)
    if len(events) == 5:
        break
stream.close()

response_id, last = events[0].response.id, events[-1].sequence_number
events += client.responses.retrieve(response_id, stream=True, starting_after=last)
print(f"{response_id}: read 5 events, then left; read {len(events) - 5} more, later")
is_whole = [event.sequence_number for event in events] == list(range(len(events)))
print("nothing is missing" if is_whole else "something is missing", "up to", events[-1].type)
