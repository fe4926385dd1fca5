// Makes a module of each TypeScript example in the documents, except the recipes, which are files already.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';

const recipes = readdirSync('recipes').map((name) => readFileSync(`recipes/${name}`, 'utf8').trim());
mkdirSync('snippets');
for (const page of ['README.md', 'typescript.md']) {
  const text = readFileSync(page, 'utf8');
  let count = 0;
  for (const [, code] of text.matchAll(/^```ts\n([^]*?)\n```$/gm)) {
    if (recipes.includes(code.trim())) continue;
    // The servers that the documents name are not there.
    const source = code.replace(/connect\('[a-z]+:\/\/[^']*'\)/g, 'connect()');
    writeFileSync(`snippets/${page.replace('.md', '')}-${++count}.ts`, `${source}\nexport {};\n`);
  }
  if (count === 0) throw new Error(`${page} has no example`);
}
