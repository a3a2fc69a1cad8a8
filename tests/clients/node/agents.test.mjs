// The Agents SDK for JavaScript: it reads each response through a strict schema.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Agent, run, setDefaultOpenAIClient, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

import { call, model, script, url } from './antiphon.mjs';

setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0, timeout: 15_000 }));

const asked = [];
const weather = tool({
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => (asked.push(city), `${city}: 20C`),
});
const agent = new Agent({ name: 'Reporter', model, tools: [weather] });

test('an agent answers', async () => {
  assert.equal((await run(agent, script({ say: 'hello' }))).finalOutput, 'hello');
});

test('an agent runs the tools that the model calls', async () => {
  asked.length = 0;
  const turns = [[{ think: 'two' }, call('Oslo'), call('Rome')], { say: 'both' }];
  assert.equal((await run(agent, script(...turns))).finalOutput, 'both');
  assert.deepEqual(asked.sort(), ['Oslo', 'Rome']);
});

test('a streamed run writes its answer', async () => {
  const stream = await run(agent, script(call('Bern'), { say: 'it is warm' }), { stream: true });
  let written = '';
  for await (const text of stream.toTextStream()) written += text;
  await stream.completed;
  assert.equal(written, 'it is warm');
  assert.equal(stream.finalOutput, written);
});

test('a run goes on from an earlier response', async () => {
  const first = await run(agent, script(call('Kyiv'), { say: 'one' }));
  const second = await run(agent, script({ say: 'two' }), { previousResponseId: first.lastResponseId });
  assert.equal(second.finalOutput, 'two');
});

test('a handoff lets another agent answer', async () => {
  const other = new Agent({ name: 'Spanish', model });
  const triage = Agent.create({ name: 'Triage', model, handoffs: [other] });
  const result = await run(triage, script({ call: 'transfer_to_Spanish', args: {} }, { say: 'hola' }));
  assert.equal(result.finalOutput, 'hola');
  assert.equal(result.lastAgent.name, 'Spanish');
});

test('an agent gives an object', async () => {
  const typed = new Agent({ name: 'Typed', model, outputType: z.object({ count: z.number() }) });
  assert.deepEqual((await run(typed, script({ say: '{"count": 3}' }))).finalOutput, { count: 3 });
});

test('a run reads responses of several turns', async () => {
  const thinker = new Agent({ name: 'Thinker', model, modelSettings: { reasoning: { summary: 'auto' } } });
  const turns = [[{ think: 'well now' }, { say: 'so be it' }]];
  const whole = await run(thinker, script(...turns));
  const stream = await run(thinker, script(...turns), { stream: true });
  await stream.completed;
  for (const result of [whole, stream]) {
    assert.equal(result.finalOutput, 'so be it');
    assert.ok(result.state.usage.outputTokens > 0);
  }
});
