// The Vercel AI SDK with programs, which it reads through a strict schema: stored and not, streamed
// and not.
import assert from 'node:assert/strict';

import { createOpenAI } from '@ai-sdk/openai';
import { generateText, streamText, tool } from 'ai';
import { z } from 'zod';

import { model as name, script, url } from './antiphon.mjs';

const provider = createOpenAI({ baseURL: url, apiKey: 'none' });
if (!provider.tools.programmaticToolCalling) {
  console.log('too old');
  process.exit(0);
}
const { isStepCount } = await import('ai');
const asked = [];
const tools = {
  program: provider.tools.programmaticToolCalling(),
  get_weather: tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), { degrees: city.length }),
    providerOptions: { openai: { allowedCallers: ['programmatic'] } },
  }),
};
const turns = [{ call: 'program', args: { code: process.env.ANTIPHON_CODE } }, { say: 'Here it is.' }];
const body = { model: provider.responses(name), tools, stopWhen: isStepCount(5), maxRetries: 0 };

for (const store of [true, false]) {
  const options = { ...body, prompt: script(...turns), providerOptions: { openai: { store } } };
  for (const mode of ['whole', 'streamed']) {
    asked.length = 0;
    const result = mode === 'whole' ? await generateText(options) : streamText(options);
    if (mode === 'streamed') {
      for await (const part of result.fullStream) if (part.type === 'error') throw part.error;
    }
    assert.equal(await result.text, 'Here it is.', `${mode}, store ${store}`);
    assert.deepEqual(asked.sort(), ['Bern', 'Oslo', 'Rome']);
    const results = (await result.steps).flatMap((step) => step.toolResults);
    const [program] = results.filter((each) => each.toolName === 'program');
    assert.deepEqual(program.output, { result: '4 4 4', status: 'completed' });
    // The conversation goes on, with the program in its history, and with another one.
    const messages = await result.responseMessages;
    const again = streamText({
      ...options,
      prompt: undefined,
      messages: [
        { role: 'user', content: script(...turns) },
        ...messages,
        { role: 'user', content: script(...turns) },
      ],
    });
    for await (const part of again.fullStream) if (part.type === 'error') throw part.error;
    assert.equal(await again.text, 'Here it is.', `${mode}, store ${store}, again`);
    assert.equal(asked.length, 6);
  }
}
console.log('passed');
