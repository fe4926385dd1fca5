// A way to a server that can be cut and mended.

import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

export class Proxy implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #open = true;

  static async to(url: string): Promise<Proxy> {
    const { hostname, port } = new URL(url);
    const proxy = new Proxy(hostname, Number(port));
    await new Promise<void>((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  private constructor(host: string, port: number) {
    this.#server = createServer((client) => {
      if (!this.#open) return client.destroy();
      const server = connect(port, host);
      for (const [socket, peer] of [
        [client, server],
        [server, client],
      ] as const) {
        this.#sockets.add(socket);
        socket.on('error', () => {});
        socket.on('close', () => {
          this.#sockets.delete(socket);
          peer.destroy();
        });
        socket.pipe(peer);
      }
    });
  }

  get url(): string {
    return `redis://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  cut(): void {
    this.#open = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend(): void {
    this.#open = true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
