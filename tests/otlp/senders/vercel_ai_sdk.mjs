// Vercel's AI SDK: generateText with tools and its telemetry, exported by OpenTelemetry's SDK for node.
import { createOpenAI } from "@ai-sdk/openai";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
const model = createOpenAI({ baseURL: `${process.env.TURN_PROVIDER_URL}/v1`, apiKey: "not-a-key" }).chat(process.env.TURN_MODEL);
const tools = {
  weather: tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `Rain in ${city}.` }),
  book: tool({
    inputSchema: z.object({ flight: z.string() }),
    execute: async ({ flight }) => {
      throw new Error(`The booking of ${flight} timed out after 30 s.`);
    },
  }),
};
const turn = {
  model,
  tools,
  prompt: "Plan a trip to Bergen.",
  maxRetries: 0,
  stopWhen: stepCountIs(5),
  experimental_telemetry: { isEnabled: true, functionId: "planner", metadata: { sessionId: process.env.TURN_SESSION } },
};

await provider.getTracer("travel").startActiveSpan("turn", async (span) => {
  let isLimited = false;
  try {
    await generateText(turn);
  } catch (error) {
    isLimited = error.statusCode === 429;
  }
  if (!isLimited) throw new Error("The provider did not limit the rate.");
  await generateText(turn);
  span.end();
});
await provider.shutdown();
