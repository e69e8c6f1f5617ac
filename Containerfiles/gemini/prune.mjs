// Removes from the CLI's bundle the modules that nothing imports: it ships most of its code three times, once for each
// of its ways to start.      node prune.mjs BUNDLE_DIRECTORY
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";

process.chdir(process.argv[2]);
const reached = new Set(["gemini.js"]);
for (const name of reached) {
  // Static and dynamic imports alike; a name that only looks like one keeps a module that is not needed, no more.
  for (const [, found] of readFileSync(name, "utf8").matchAll(/["'`]\.\/([\w-]+\.js)["'`]/g)) {
    if (existsSync(found)) reached.add(found);
  }
}
for (const name of readdirSync(".")) {
  if (name.endsWith(".js") && !reached.has(name)) rmSync(name);
}
