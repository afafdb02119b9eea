// The `openai` package of npm against a server of the built-in model (SNUG_URL) and one of a script (SNUG_SCRIPT_URL).
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const apiKey = process.env.SNUG_API_KEY;
const model = new OpenAI({ baseURL: process.env.SNUG_URL + '/v1', apiKey, maxRetries: 0 });
const script = new OpenAI({ baseURL: process.env.SNUG_SCRIPT_URL + '/v1', apiKey, maxRetries: 0 });
const messages = [{ role: 'user', content: 'Tell me about a lighthouse.' }];
const fixed = { model: 'any', messages, seed: 7, temperature: 0.8, max_tokens: 12 };
const weather = {
  type: 'object', additionalProperties: false, required: ['city', 'unit'],
  properties: { city: { type: 'string', maxLength: 12 }, unit: { type: 'string', enum: ['c', 'f'] } },
};
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather.', parameters: weather, strict: true } },
  { type: 'function', function: { name: 'get_time', parameters: { type: 'object', properties: {}, additionalProperties: false } } }];
const flat = tools.map((t) => ({ type: 'function', ...t.function }));
const schema = { name: 'pet', strict: true, schema: { type: 'object', required: ['kind'], additionalProperties: false, properties: { kind: { enum: ['cat', 'dog'] } } } };

// The built-in model is a toy and may fill its limit with white space: the first of a few answers that has an end.
async function firstWhole(ask) {
  for (let seed = 0; seed < 6; seed += 1) {
    const answer = await ask(seed);
    if ((answer.choices?.[0].finish_reason ?? answer.incomplete_details?.reason) !== (answer.choices ? 'length' : 'max_output_tokens')) return answer;
  }
  throw new Error('no answer came to an end');
}

const checks = {
  async 'models say their context'() {
    const list = (await model.models.list()).data;
    assert.equal(list.length, 1);
    assert.equal(list[0].context_length, 2048);
  },
  async 'a stream adds up to the plain answer'() {
    const whole = await model.chat.completions.create(fixed);
    assert.equal(whole.usage.completion_tokens, 12);
    let text = '', usage;
    for await (const chunk of await model.chat.completions.create({ ...fixed, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
  },
  async 'the stream helper ends with the whole answer'() {
    const stream = model.chat.completions.stream(fixed);
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, 'length');
    assert.ok(final.choices[0].message.content.length > 0);
  },
  async 'a stream that is aborted frees the server'() {
    const stream = await model.chat.completions.create({ ...fixed, max_tokens: 1500, stream: true });
    for await (const chunk of stream) { if (chunk.choices[0]?.delta?.content) break; }
    stream.controller.abort();
    const begun = Date.now();
    await model.chat.completions.create({ ...fixed, max_tokens: 1 });
    assert.ok(Date.now() - begun < 10_000);
  },
  async 'required and named tools are called'() {
    for (const tool_choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
      const a = await firstWhole((seed) => model.chat.completions.create({ model: 'any', messages, tools, tool_choice, seed, max_tokens: 200, parallel_tool_calls: false, reasoning_effort: 'none' }));
      assert.equal(a.choices[0].finish_reason, 'tool_calls');
      const calls = a.choices[0].message.tool_calls;
      assert.equal(calls.length, 1);
      const args = JSON.parse(calls[0].function.arguments);
      if (calls[0].function.name === 'get_weather') assert.ok(['c', 'f'].includes(args.unit));
    }
  },
  async 'tools may be left alone'() {
    for (const tool_choice of ['auto', 'none']) await model.chat.completions.create({ ...fixed, tools, tool_choice });
  },
  async 'the tool runner calls both and reads the answer'() {
    const seen = [];
    const runnable = tools.map((t) => ({ ...t, function: { ...t.function, parse: JSON.parse, function: (args) => { seen.push([t.function.name, args]); return 'fine'; } } }));
    const runner = script.chat.completions.runTools({ model: 'any', messages: [{ role: 'user', content: 'Say the calls' }], tools: runnable }, { maxChatCompletions: 1 });
    await runner.done();
    assert.deepEqual(seen, [['get_weather', { city: 'Oslo', unit: 'c' }], ['get_time', {}]]);
  },
  async 'reasoning is told apart'() {
    const a = await script.chat.completions.create({ model: 'any', messages: [{ role: 'user', content: 'Say a reason' }] });
    assert.equal(a.choices[0].message.reasoning_content, 'It is short.');
    assert.equal(a.choices[0].message.content, 'Four.');
  },
  async 'a schema is followed'() {
    const a = await firstWhole((seed) => model.chat.completions.create({ model: 'any', messages, seed, max_tokens: 100, reasoning_effort: 'none', response_format: { type: 'json_schema', json_schema: schema } }));
    assert.ok(['cat', 'dog'].includes(JSON.parse(a.choices[0].message.content).kind));
  },
  async 'responses answer, stream, call and are kept'() {
    const kw = { model: 'any', input: 'Tell me about a lighthouse.', max_output_tokens: 12, temperature: 0 };
    const a = await model.responses.create(kw);
    let text = '';
    for await (const e of await model.responses.create({ ...kw, stream: true })) if (e.type === 'response.output_text.delta') text += e.delta;
    assert.equal(text, a.output_text);
    assert.equal((await model.responses.retrieve(a.id)).id, a.id);
    const b = await firstWhole((seed) => model.responses.create({ model: 'any', input: 'Weather?', tools: flat, tool_choice: 'required', seed, max_output_tokens: 200, parallel_tool_calls: false, reasoning: { effort: 'none' } }));
    assert.ok(b.output.some((o) => o.type === 'function_call'));
    const c = await firstWhole((seed) => model.responses.create({ model: 'any', input: 'A pet.', text: { format: { type: 'json_schema', ...schema } }, seed, max_output_tokens: 100, reasoning: { effort: 'none' } }));
    assert.ok(['cat', 'dog'].includes(JSON.parse(c.output_text).kind));
  },
  async 'errors are the package\'s own'() {
    await assert.rejects(model.chat.completions.create({ ...fixed, temperature: -1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
    await assert.rejects(model.chat.completions.create({ ...fixed, messages: [{ role: 'user', content: 'word '.repeat(4000) }] }), (e) => e.code === 'context_length_exceeded');
    await assert.rejects(new OpenAI({ baseURL: process.env.SNUG_URL + '/v1', apiKey: 'wrong', maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
    await assert.rejects(model.responses.retrieve('resp_none'), OpenAI.NotFoundError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
  } catch (e) {
    failed += 1;
    console.error(`FAILED openai for node: ${name}\n`, e);
  }
}
console.log(`openai for node: ${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
