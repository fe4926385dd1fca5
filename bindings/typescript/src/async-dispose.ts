// The symbol of `await using`, which the first versions of Node 20 lack.

if (!Symbol.asyncDispose) {
  Object.defineProperty(Symbol, 'asyncDispose', { value: Symbol.for('nodejs.asyncDispose') });
}
