// A way to a server that can be cut and mended.

import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

export class Proxy implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #target: URL;
  #open = true;
  #stalled = false;

  static async to(url: string): Promise<Proxy> {
    const proxy = new Proxy(new URL(url));
    await new Promise<void>((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  private constructor(target: URL) {
    this.#target = target;
    this.#server = createServer((client) => {
      if (!this.#open) return client.destroy();
      const server = connect(Number(target.port), target.hostname);
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
        if (this.#stalled) socket.pause();
      }
    });
  }

  /** The URL of the server by way of this proxy. */
  get url(): string {
    const url = new URL(this.#target);
    url.port = String((this.#server.address() as AddressInfo).port);
    return url.href;
  }

  cut(): void {
    this.#open = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Keeps the connections, and passes nothing on. */
  stall(): void {
    this.#stalled = true;
    for (const socket of this.#sockets) socket.pause();
  }

  mend(): void {
    this.#open = true;
    this.#stalled = false;
    for (const socket of this.#sockets) socket.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
