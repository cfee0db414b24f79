// A proxy that passes requests and answers on, and no upgrades: as many a company has.
//
// usage: http_only.mjs HOST:PORT    says its own port in a line of JSON

import { createServer, request } from "node:http";

const [hostname, port] = process.argv[2].split(":");

const server = createServer((incoming, outgoing) => {
  const { method, url: path, headers } = incoming;
  const passed = request({ hostname, port, method, path, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.headers);
    answer.pipe(outgoing);
  });
  passed.on("error", () => outgoing.destroy());
  incoming.pipe(passed);
});
server.on("upgrade", (_, socket) => socket.end("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
server.listen(0, hostname, () => process.stdout.write(`${JSON.stringify({ port: server.address().port })}\n`));
process.on("SIGTERM", () => process.exit());
