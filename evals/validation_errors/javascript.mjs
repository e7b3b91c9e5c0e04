// Validates each call of the scenarios on stdin with ajv and zod, and prints the errors as their users see them.
// Needs: npm install ajv zod zod3@npm:zod@3
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(process.cwd() + "/");
const Ajv = require("ajv/dist/2020").default;
const z4 = require("zod");
const z3 = require("zod3").z;

function toZod(z, schema, isStrict) {
  const inner = (child) => toZod(z, child, isStrict);
  if (schema.const !== undefined) return z.literal(schema.const);
  if (schema.enum) return z.enum(schema.enum);
  const branches = schema.anyOf || schema.oneOf;
  if (branches) return z.union(branches.map(inner));
  if (schema.type === "object") {
    const shape = {};
    for (const [name, child] of Object.entries(schema.properties)) {
      shape[name] = schema.required.includes(name) ? inner(child) : inner(child).optional();
    }
    return isStrict ? z.object(shape).strict() : z.object(shape);
  }
  if (schema.type === "array") return z.array(inner(schema.items));
  const scalars = { string: z.string(), number: z.number(), boolean: z.boolean(), null: z.null() };
  return schema.type === "integer" ? z.number().int() : scalars[schema.type];
}

function forbidUnknownNames(schema) {
  if (Array.isArray(schema)) return schema.map(forbidUnknownNames);
  if (schema === null || typeof schema !== "object") return schema;
  const mapped = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, forbidUnknownNames(value)]));
  return mapped.type === "object" && mapped.properties ? { ...mapped, additionalProperties: false } : mapped;
}

const version = (name) => JSON.parse(readFileSync(`${process.cwd()}/node_modules/${name}/package.json`)).version;
const rows = [];
for (const { name, schema, call } of JSON.parse(readFileSync(0, "utf8"))) {
  const ajv = new Ajv({ allErrors: true });
  const validate = ajv.compile(forbidUnknownNames(schema));
  validate(call);
  const add = (library, rendering, error) => rows.push({ scenario: name, library, rendering, error });
  add(`ajv ${version("ajv")}`, "errors", JSON.stringify(validate.errors));
  add(`ajv ${version("ajv")}`, "text", ajv.errorsText(validate.errors));
  const strict = toZod(z4, schema, true).safeParse(call).error;
  add(`zod ${version("zod")}`, "message", strict.message);
  add(`zod ${version("zod")}`, "pretty", z4.prettifyError(strict));
  add(`zod ${version("zod3")}`, "message", toZod(z3, schema, true).safeParse(call).error.message);
}
console.log(JSON.stringify(rows));
