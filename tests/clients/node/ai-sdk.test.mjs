// The Vercel AI SDK: it reads each event through a schema, and drops those that do not fit.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

import { call, model as name, script, url } from './antiphon.mjs';

const provider = createOpenAI({ baseURL: url, apiKey: 'none' });
const model = provider.responses(name);
const reasoning = { openai: { store: false, forceReasoning: true, reasoningSummary: 'auto' } };
const asked = [];
const tools = {
  get_weather: tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), `${city}: 20C`),
  }),
};
const loop = { model, tools, stopWhen: stepCountIs(5), maxRetries: 0 };

async function parts(result) {
  const found = [];
  for await (const part of result.fullStream) {
    if (part.type === 'error') throw part.error;
    found.push(part);
  }
  return found;
}

const kind = (found, type) => found.filter((part) => part.type === type);
const raw = (found, type) => kind(found, 'raw').filter((part) => part.rawValue.type === type);

test('text is generated with its usage', async () => {
  const { text, usage, finishReason } = await generateText({ model, prompt: script({ say: 'hello' }) });
  assert.equal(text, 'hello');
  assert.equal(finishReason, 'stop');
  assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
});

test('a loop over parallel tools ends with the answer', async () => {
  asked.length = 0;
  const prompt = script([{ think: 'two' }, call('Oslo'), call('Rome')], { say: 'both' });
  const { text, steps } = await generateText({ ...loop, prompt });
  assert.equal(text, 'both');
  assert.equal(steps.length, 2);
  assert.deepEqual(asked.sort(), ['Oslo', 'Rome']);
});

test('a loop goes on with sealed reasoning when nothing is stored', async () => {
  const prompt = script([{ think: 'a' }, call('Oslo')], [{ think: 'b' }, call('Rome')], { say: 'end' });
  const { text, steps } = await generateText({ ...loop, prompt, providerOptions: reasoning });
  assert.equal(text, 'end');
  assert.equal(steps.length, 3);
});

test('no streamed event is dropped by the schema', async () => {
  const turns = [[{ think: 'well now' }, call('Bern')], [{ think: 'so' }, { say: 'one two three' }]];
  const options = { prompt: script(...turns), includeRawChunks: true, providerOptions: reasoning };
  const found = await parts(streamText({ ...loop, ...options }));
  const pairs = {
    'text-delta': 'response.output_text.delta',
    'tool-input-delta': 'response.function_call_arguments.delta',
    'reasoning-delta': 'response.reasoning_summary_text.delta',
    'finish-step': 'response.completed',
  };
  for (const [type, event] of Object.entries(pairs)) {
    assert.ok(raw(found, event).length > 0, event);
    assert.equal(kind(found, type).length, raw(found, event).length, type);
  }
  const thought = kind(found, 'reasoning-delta').map((part) => part.text).join('');
  const items = raw(found, 'response.completed').flatMap((part) => part.rawValue.response.output);
  const summaries = items.flatMap((item) => item.summary ?? []).map((part) => part.text);
  assert.equal(summaries.length, 2);
  assert.equal(thought, summaries.join(''));
});

test('an answer has the form of its schema', async () => {
  const schema = z.object({ city: z.string(), population: z.number().nullable() });
  const { output } = await generateText({ model, output: Output.object({ schema }), prompt: 'any' });
  assert.ok(schema.parse(output));
});

test('a custom tool is called with free text', async () => {
  const patch = provider.tools.customTool({ name: 'patch', description: 'Applies a patch.' });
  const { toolCalls } = await generateText({ model, tools: { patch }, prompt: script({ custom: 'patch', input: '*** x' }) });
  assert.deepEqual(toolCalls.map((each) => each.input), ['*** x']);
});

test('a cut answer ends for its length', async () => {
  const prompt = script({ say: 'word ', repeat: 200 });
  const found = await parts(streamText({ model, prompt, maxOutputTokens: 16 }));
  assert.equal(found.at(-1).finishReason, 'length');
});

test('an engine that fails is an error of the stream', async () => {
  const result = streamText({ model, prompt: script([{ say: 'a' }, { fail: 'server_error' }]), onError: () => {} });
  await assert.rejects(parts(result));
});

test('errors carry the status and the body', async () => {
  await assert.rejects(generateText({ model, prompt: 'x', temperature: 9, maxRetries: 0 }), (error) => {
    assert.equal(error.statusCode, 400);
    assert.equal(error.data.error.param, 'temperature');
    return true;
  });
});

test('an aborted stream leaves the server well', async () => {
  const abort = new AbortController();
  const prompt = script({ say: 'y ', repeat: 500, tick: 0.02 });
  for await (const part of streamText({ model, prompt, abortSignal: abort.signal }).fullStream)
    if (part.type === 'text-delta') abort.abort();
  assert.equal((await generateText({ model, prompt: script({ say: 'alive' }) })).text, 'alive');
});
