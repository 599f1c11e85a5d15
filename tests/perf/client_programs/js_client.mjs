// OpenAI's and Anthropic's packages for JavaScript and the AI SDK against a gateway: run by gateway_clients.py in a
// folder that has them (npm install openai @anthropic-ai/sdk ollama ai @ai-sdk/openai-compatible).
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [base, key, model, embeddings, , , folder] = process.argv.slice(2);
const from = createRequire(`${folder}/package.json`);
const { OpenAI } = from("openai"), { Anthropic } = from("@anthropic-ai/sdk"), { Ollama } = from("ollama");
const { generateText, streamText } = from("ai"), { createOpenAICompatible } = from("@ai-sdk/openai-compatible");
const messages = [{ role: "user", content: "Say hello to Ada." }], ask = { model, messages, max_tokens: 12 };
const check = (good, what) => { if (!good) throw new Error(JSON.stringify(what)); };
const refused = async (call, words) => {
  try { await call(); } catch (error) { return check(String(error.message).includes(words), error.message); }
  throw new Error(`not refused: ${words}`);
};
const options = { baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 };
const openai = new OpenAI(options), anthropic = new Anthropic({ ...options, baseURL: base });
const sdk = createOpenAICompatible({ name: "gpubox", ...options });
const ollama = new Ollama({ host: base, headers: { Authorization: `Bearer ${key}` } });

const steps = {
  async models() {
    const names = [];
    for await (const each of openai.models.list()) names.push(each.id);
    check(names.includes(model), names);
  },
  async chat() { check((await openai.chat.completions.create(ask)).choices[0].message.content, "empty"); },
  async stream() {
    let text = "", usage;
    for await (const part of await openai.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
      text += part.choices[0]?.delta?.content ?? "";
      usage = part.usage ?? usage;
    }
    check(text && usage.completion_tokens, { text, usage });
  },
  async early_end() {
    let count = 0;
    const parts = await openai.chat.completions.create({ ...ask, max_tokens: 2000, stream: true });
    for await (const _ of parts) if (++count > 3) parts.controller.abort();
    await steps.chat();
  },
  async responses() { check((await openai.responses.create({ model, input: "Hi", max_output_tokens: 16 })).output_text, "empty"); },
  async embeddings() {
    const reply = await openai.embeddings.create({ model: embeddings, input: ["one", "two"] });
    check(reply.data.length === 2 && reply.data[0].embedding.length > 100, "short");
  },
  async anthropic() {
    check((await anthropic.messages.create(ask)).content[0].text, "empty");
    check((await anthropic.messages.stream(ask).finalMessage()).content[0].text, "empty");
  },
  async ai_sdk() {
    check((await generateText({ model: sdk(model), prompt: "Hi", maxOutputTokens: 8 })).text, "empty");
    let text = "";
    for await (const part of streamText({ model: sdk(model), prompt: "Hi", maxOutputTokens: 8 }).textStream) text += part;
    check(text, "empty");
  },
  async ollama() {
    const asked = { model, messages, options: { num_predict: 8 } };
    check((await ollama.chat(asked)).message.content, "empty");
    let last;
    for await (const part of await ollama.chat({ ...asked, stream: true })) last = part;
    check(last.done, last);
  },
  async wrong_model() {
    await refused(() => openai.chat.completions.create({ ...ask, model: "nope" }), "no profile 'nope'");
    await refused(() => anthropic.messages.create({ ...ask, model: "nope" }), "no profile 'nope'");
    await refused(() => generateText({ model: sdk("nope"), prompt: "Hi", maxRetries: 0 }), "no profile 'nope'");
    await refused(() => ollama.chat({ model: "nope", messages }), "no profile 'nope'");
  },
  async wrong_key() {
    await refused(() => new OpenAI({ ...options, apiKey: "wrong" }).models.list(), "key is missing or wrong");
  },
};
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let failed = 0;
for (const [name, step] of Object.entries(steps)) {
  await lines.next();
  const began = Date.now();
  try { await step(); console.log(`ok ${name} ${(Date.now() - began) / 1000} s`); }
  catch (error) { failed = 1; console.log(`FAILED ${name}: ${String(error.stack).replace(/\s+/g, " ").slice(0, 400)}`); }
}
process.exit(failed);
