// OpenAI's Agents SDK for JavaScript with programs, streamed and not.
import assert from 'node:assert/strict';

import {
  Agent,
  OpenAIResponsesModel,
  Runner,
  programmaticToolCallingTool,
  setTracingDisabled,
  tool,
} from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

import { model as name, script, url } from './antiphon.mjs';

setTracingDisabled(true);
const asked = [];
const weather = tool({
  name: 'get_weather',
  description: 'Weather.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => (asked.push(city), { degrees: city.length }),
  allowedCallers: ['programmatic'],
});
const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const model = new OpenAIResponsesModel(client, name);
const agent = new Agent({ name: 'Reporter', model, tools: [programmaticToolCallingTool(), weather] });
const turns = [{ call: 'program', args: { code: process.env.ANTIPHON_CODE } }, { say: 'Here it is.' }];

for (const stream of [false, true]) {
  asked.length = 0;
  const result = await new Runner().run(agent, script(...turns), { stream });
  if (stream) await result.completed;
  assert.equal(result.finalOutput, 'Here it is.');
  assert.deepEqual(asked.sort(), ['Bern', 'Oslo', 'Rome']);
  // The conversation goes on, with the program in its history, and with another one.
  const question = { role: 'user', content: script(...turns) };
  const again = await new Runner().run(agent, [...result.history, question], { stream });
  if (stream) await again.completed;
  assert.equal(again.finalOutput, 'Here it is.');
  assert.equal(asked.length, 6);
}
console.log('passed');
