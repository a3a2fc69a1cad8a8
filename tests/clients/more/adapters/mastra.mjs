// Mastra's agent, on a model of the Vercel AI SDK. See play.py for what the scenes are.
import { readFileSync, writeFileSync } from 'node:fs';

import { createOpenAI } from '@ai-sdk/openai';
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { z } from 'zod';

const { ANTIPHON_API: api, ANTIPHON_MODEL: name, ANTIPHON_URL: baseURL } = process.env;
const provider = createOpenAI({ baseURL, apiKey: 'none' });
const model = api === 'responses' ? provider.responses(name) : provider.chat(name);
const place = z.object({ city: z.string(), population: z.number() });
const cities = [];
const get_weather = createTool({
  id: 'get_weather',
  description: 'The weather of a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (cities.push(city), `${city}: 20C`),
});
const agent = (tools = {}) =>
  new Agent({ id: 'reporter', name: 'Reporter', instructions: 'Be brief.', model, tools, maxRetries: 0 });

const scenes = {
  plain: async (prompt) => (await agent().generate(prompt)).text,
  stream: async (prompt) => {
    const pieces = [];
    for await (const piece of (await agent().stream(prompt)).textStream) pieces.push(piece);
    return pieces;
  },
  tools: async (prompt) => (await agent({ get_weather }).generate(prompt, { maxSteps: 5 })).text,
  turns: async (...prompts) => {
    const history = [];
    for (const content of prompts) {
      history.push({ role: 'user', content });
      history.push({ role: 'assistant', content: (await agent().generate(history)).text });
    }
    return history.filter(({ role }) => role === 'assistant').map(({ content }) => content);
  },
  structured: async (prompt) =>
    (await agent().generate(prompt, { structuredOutput: { schema: place } })).object,
};

const played = {};
for (const [scene, prompts] of Object.entries(JSON.parse(readFileSync(0, 'utf8')))) {
  cities.length = 0;
  try {
    played[scene] = { result: await scenes[scene](...prompts), cities: [...cities] };
  } catch (error) {
    played[scene] = { error: error.stack };
  }
}
writeFileSync(process.argv[2], JSON.stringify(played));
process.exit(0);
