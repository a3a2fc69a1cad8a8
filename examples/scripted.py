"""Make the scripted model do exactly what your test needs: think, then answer."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
turns = [[{"think": "They greet me."}, {"say": "Hello there!"}]]
response = client.responses.create(model="scripted-harmony", input=f"@@script {json.dumps(turns)}")
thought, message = response.output
print("the model thinks:", thought.content[0].text)
print("the model says:  ", message.content[0].text)
