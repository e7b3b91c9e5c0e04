// Errors of Node's web frameworks, one JSON line each: [source, case, status, body].
import http from "node:http";

const STATUSES = [400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504];
const REASON = "The order cannot be changed any more";
const print = (...row) => console.log(JSON.stringify(row));

async function fetchAll(source, port, paths) {
  for (const [name, path, options] of paths) {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, options);
    print(source, name, response.status, await response.text());
  }
}

const paths = [
  ...STATUSES.map((status) => [`${status}`, `/fail/${status}`]),
  ["unknown route", "/nothing"],
  ["crash", "/crash"],
  ["broken body", "/orders", { method: "POST", body: "{", headers: { "content-type": "application/json" } }],
  ["validation", "/orders", { method: "POST", body: "{}", headers: { "content-type": "application/json" } }],
];

async function optional(name, run) {
  try {
    await run();
  } catch (error) {
    console.error(`${name}: ${error.message}`);
  }
}

await optional("node http", async () => {
  const server = http.createServer((request, response) => {
    const status = Number(request.url.split("/").at(-1)) || 404;
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ statusCode: status, message: http.STATUS_CODES[status] }));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  await fetchAll("node http", server.address().port, paths.slice(0, STATUSES.length));
  server.close();
});

await optional("express", async () => {
  process.env.NODE_ENV = "production";
  const { default: express } = await import("express");
  const app = express();
  app.use(express.json());
  app.get("/fail/:status", (request, response) => response.sendStatus(Number(request.params.status)));
  app.get("/crash", () => { throw new Error("price table is empty"); });
  app.post("/orders", (request, response) => response.status(422).json({ message: REASON }));
  const server = app.listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  await fetchAll("express", server.address().port, paths);
  server.close();
});

await optional("fastify", async () => {
  const { default: fastify } = await import("fastify");
  const app = fastify();
  app.get("/fail/:status", (request) => {
    throw Object.assign(new Error(REASON), { statusCode: Number(request.params.status) });
  });
  app.get("/crash", () => { throw new Error("price table is empty"); });
  const schema = { body: { type: "object", required: ["quantity"] } };
  app.post("/orders", { schema }, () => ({ ok: true }));
  await app.listen({ port: 0, host: "127.0.0.1" });
  await fetchAll("fastify", app.server.address().port, paths);
  await app.close();
});

await optional("koa", async () => {
  const { default: Koa } = await import("koa");
  const app = new Koa();
  app.silent = true;
  app.use((context) => {
    const status = Number(context.path.split("/").at(-1));
    if (context.path === "/crash") throw new Error("price table is empty");
    if (status) context.throw(status, REASON);
  });
  const server = app.listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  await fetchAll("koa", server.address().port, paths.slice(0, STATUSES.length + 2));
  server.close();
});

await optional("hapi", async () => {
  const { default: hapi } = await import("@hapi/hapi");
  const { default: boom } = await import("@hapi/boom");
  const server = hapi.server({ port: 0, host: "127.0.0.1", debug: false });
  server.route({ method: "GET", path: "/fail/{status}", handler: (request) => {
    throw new boom.Boom(REASON, { statusCode: Number(request.params.status) });
  } });
  server.route({ method: "GET", path: "/crash", handler: () => { throw new Error("price table is empty"); } });
  server.route({ method: "POST", path: "/orders", handler: () => { throw boom.badData(REASON); } });
  await server.start();
  await fetchAll("hapi", server.info.port, paths);
  await server.stop();
});
process.exit(0);
