"""Make the scripted model do exactly what your test needs: think, call, then answer."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
turns = [[{"think": "They greet me."}, {"say": "Hello there!"}]]
response = client.responses.create(model="scripted-harmony", input=f"@@script {json.dumps(turns)}")
print([item.type for item in response.output], response.output_text)
