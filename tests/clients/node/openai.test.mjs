// The official SDK for Node.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI from 'openai';
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { call, model, script, url } from './antiphon.mjs';

const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0, timeout: 15_000 });
const weather = zodResponsesFunction({ name: 'get_weather', parameters: z.object({ city: z.string() }) });
const Place = z.object({ city: z.string(), population: z.number().nullable() });
const words = Array.from({ length: 40 }, (_, n) => `w${n}`).join(' ');

const outputs = (response) =>
  response.output
    .filter((item) => item.type === 'function_call')
    .map((item) => ({ type: 'function_call_output', call_id: item.call_id, output: '20C' }));

test('a response has its text, status and request id', async () => {
  const response = await client.responses.create({ model, input: script({ say: 'hello node' }) });
  assert.equal(response.output_text, 'hello node');
  assert.equal(response.status, 'completed');
  assert.match(response._request_id, /^req_/);
});

test('the stream helper accumulates what the final response says', async () => {
  const seen = [];
  const stream = client.responses.stream({ model, input: script([{ think: 'hm' }, { say: 'one two three' }]) });
  stream.on('event', (event) => seen.push(event));
  stream.on('response.output_text.delta', (event) => assert.ok('one two three'.startsWith(event.snapshot)));
  const final = await stream.finalResponse();
  assert.equal(final.output_text, 'one two three');
  assert.deepEqual(seen.map((event) => event.sequence_number), [...seen.keys()]);
  assert.equal(seen.at(-1).type, 'response.completed');
});

test('parallel calls are streamed and answered by previous_response_id', async () => {
  const turns = [[call('Ulm'), call('Bonn')], { say: 'fine' }];
  const first = await client.responses.stream({ model, input: script(...turns), tools: [weather] }).finalResponse();
  const calls = first.output.filter((item) => item.type === 'function_call');
  assert.deepEqual(calls.map((item) => JSON.parse(item.arguments).city), ['Ulm', 'Bonn']);
  const second = await client.responses.create({
    model, previous_response_id: first.id, tools: [weather], input: outputs(first),
  });
  assert.equal(second.output_text, 'fine');
});

test('a loop whose history the client keeps goes on with sealed reasoning', async () => {
  const kept = { model, tools: [weather], store: false, include: ['reasoning.encrypted_content'] };
  const input = [{ role: 'user', content: script([{ think: 'where?' }, call('Rome')], { say: 'warm' }) }];
  const first = await client.responses.create({ ...kept, input });
  const [reasoning] = first.output;
  assert.ok(reasoning.encrypted_content);
  const second = await client.responses.create({ ...kept, input: [...input, ...first.output, ...outputs(first)] });
  assert.equal(second.output_text, 'warm');
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test('parse gives objects of the schema', async () => {
  const said = { city: 'Bonn', population: null };
  const format = zodTextFormat(Place, 'place');
  const scripted = await client.responses.parse({ model, input: script({ say: JSON.stringify(said) }), text: { format } });
  assert.deepEqual(scripted.output_parsed, said);
  const unscripted = await client.responses.parse({ model, input: 'any', text: { format } });
  assert.ok(Place.parse(unscripted.output_parsed));
  const called = await client.responses.parse({ model, input: 'any', tools: [weather] });
  assert.equal(typeof called.output.at(-1).parsed_arguments.city, 'string');
});

test('a custom tool takes free text', async () => {
  const tools = [{ type: 'custom', name: 'code' }];
  const first = await client.responses.create({ model, tools, input: script({ custom: 'code', input: 'print(1)\n' }, { say: 'ran' }) });
  const item = first.output.at(-1);
  assert.equal(item.type, 'custom_tool_call');
  assert.equal(item.input, 'print(1)\n');
  const input = [{ type: 'custom_tool_call_output', call_id: item.call_id, output: '1' }];
  const second = await client.responses.create({ model, tools, previous_response_id: first.id, input });
  assert.equal(second.output_text, 'ran');
});

test('a dropped background stream is resumed without a gap', async () => {
  const stream = await client.responses.create({
    model, input: script({ say: words, tick: 0.01 }), background: true, stream: true,
  });
  const seen = [];
  for await (const event of stream) if (seen.push(event) === 8) break;
  const rest = client.responses.stream({ response_id: seen[0].response.id, starting_after: 7 });
  for await (const event of rest) seen.push(event);
  assert.deepEqual(seen.map((event) => event.sequence_number), [...seen.keys()]);
  const text = seen.filter((event) => event.type === 'response.output_text.delta').map((event) => event.delta);
  assert.equal(text.join(''), words);
});

test('a background response is cancelled', async () => {
  const started = await client.responses.create({ model, input: script({ hang: 15 }), background: true });
  assert.equal((await client.responses.cancel(started.id)).status, 'cancelled');
});

test('an aborted stream leaves the server well', async () => {
  const stream = await client.responses.create({ model, input: script({ say: 'y ', repeat: 500, tick: 0.02 }), stream: true });
  for await (const event of stream) if (event.sequence_number > 6) stream.controller.abort();
  const next = await client.responses.create({ model, input: script({ say: 'alive' }) });
  assert.equal(next.output_text, 'alive');
});

test('errors have the class, the field and the code', async () => {
  await assert.rejects(client.responses.create({ model, input: 'x', temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'temperature');
    return error.type === 'invalid_request_error';
  });
  await assert.rejects(client.responses.create({ model, input: 'x', previous_response_id: 'resp_none' }), {
    code: 'previous_response_not_found',
  });
  await assert.rejects(client.responses.create({ model: 'none', input: 'x' }), { code: 'model_not_found' });
});

test('stored responses are read, listed and deleted', async () => {
  const input = ['a', 'b', 'c'].map((content) => ({ role: 'user', content }));
  const { id } = await client.responses.create({ model, input });
  assert.equal((await client.responses.retrieve(id)).id, id);
  const listed = [];
  for await (const item of client.responses.inputItems.list(id, { order: 'asc', limit: 2 })) listed.push(item);
  assert.deepEqual(listed.map((item) => item.content[0].text), ['a', 'b', 'c']);
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
});

test('tokens are counted and models listed', async () => {
  const counted = await client.responses.inputTokens.count({ model, input: 'hello '.repeat(20) });
  assert.ok(counted.input_tokens > 20);
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert.ok(names.includes(model));
});

test('a compacted conversation goes on', async () => {
  const compacted = await client.responses.compact({ model, input: [{ role: 'user', content: 'Remember me.' }] });
  assert.ok(compacted.output.some((item) => item.type === 'compaction'));
  const input = [...compacted.output, { role: 'user', content: script({ say: 'on we go' }) }];
  assert.equal((await client.responses.create({ model, input })).output_text, 'on we go');
});

test('turns over one WebSocket go on from each other without a store', async () => {
  const { ResponsesWS } = await import('openai/resources/responses/ws');
  const socket = new ResponsesWS(client);
  const turn = (request) =>
    new Promise((resolve, reject) => {
      const read = (event) => {
        if (event.type !== 'response.completed') return;
        socket.off('event', read);
        resolve(event.response);
      };
      socket.on('event', read);
      socket.once('error', reject);
      socket.send({ type: 'response.create', model, store: false, tools: [weather], ...request });
    });
  const first = await turn({ input: script(call('Ulm'), { say: 'over the socket' }) });
  const second = await turn({ previous_response_id: first.id, input: outputs(first) });
  assert.equal(second.output.at(-1).content[0].text, 'over the socket');
  socket.close();
});

test('a conversation keeps what was said', async () => {
  const conversation = await client.conversations.create({ metadata: { topic: 'weather' } });
  const first = await client.responses.create({ model, conversation: conversation.id, input: script({ say: 'kept' }) });
  assert.equal(first.conversation.id, conversation.id);
  const roles = [];
  for await (const item of client.conversations.items.list(conversation.id, { order: 'asc', limit: 1 })) roles.push(item.role);
  assert.deepEqual(roles, ['user', 'assistant']);
  assert.equal((await client.conversations.delete(conversation.id)).deleted, true);
  await assert.rejects(client.conversations.retrieve(conversation.id), OpenAI.NotFoundError);
});

test('a response that has used up its turns is read, with what each took', async () => {
  const find = { type: 'function', name: 'find', parameters: { type: 'object', properties: {} }, defer_loading: true };
  const turns = Array(150).fill({ call: 'tool_search', args: { query: 'nothing like it' } });
  const body = { model, input: script(...turns), tools: [find, { type: 'tool_search' }] };
  const events = [];
  for await (const event of await client.responses.create({ ...body, stream: true })) events.push(event);
  const { type, response } = events.at(-1);
  assert.equal(type, 'response.incomplete');
  assert.equal(response.incomplete_details.reason, 'max_turns');
  const summed = response.usage_per_turn.reduce((sum, turn) => sum + turn.input_tokens, 0);
  assert.equal(response.usage.input_tokens, summed);
});
