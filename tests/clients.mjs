// Vercel's AI SDK, unchanged, against the API at process.argv[2]: text, streams, objects of a schema, tools. Run by tests/clients.py.
import assert from "node:assert";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const asterism = createOpenAICompatible({
  name: "asterism",
  baseURL: `${process.argv[2]}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: asterism(process.argv[3]), maxRetries: 0, maxOutputTokens: 90 };
const trip = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });

const text = await generateText({ ...asked, prompt: "Which sea is it?" });
assert(text.usage.outputTokens > 0, JSON.stringify(text.usage));

const stream = streamText({ ...asked, prompt: "Which sea is it?" });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
assert.equal(streamed, text.text);
assert((await stream.usage).totalTokens > 0);

const { object } = await generateObject({ ...asked, schema: trip, prompt: "Three days in Oslo." });
assert(trip.safeParse(object).success, JSON.stringify(object));

let last;
for await (const partial of streamObject({ ...asked, schema: trip, prompt: "Three days in Oslo." }).partialObjectStream) last = partial;
assert(trip.safeParse(last).success, JSON.stringify(last));

// The first answer has to call, the one behind the result does not: an agent of two steps.
const seen = [];
const weather = tool({
  description: "Tells the weather.",
  inputSchema: trip,
  execute: async (input) => (seen.push(input), "cold"),
});
const agent = await generateText({
  ...asked,
  prompt: "How is the weather in Oslo?",
  tools: { weather },
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
});
assert.equal(seen.length, 1, JSON.stringify(seen));
assert(trip.safeParse(seen[0]).success, JSON.stringify(seen));
assert.equal(agent.steps.length, 2);

const calls = [];
const called = streamText({ ...asked, prompt: "How is the weather?", tools: { weather }, toolChoice: { type: "tool", toolName: "weather" } });
for await (const part of called.fullStream) {
  if (part.type === "error") throw part.error;
  if (part.type === "tool-call") calls.push(part.input);
}
assert(calls.length === 1 && trip.safeParse(calls[0]).success, JSON.stringify(calls));
