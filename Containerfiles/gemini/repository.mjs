// Loaded into the Gemini CLI before its own code.  The system's settings outrank those of the repository, but lists of
// tools are merged or compared with them, and the aliases of models and `.gemini/.env` have nothing above them.  So the
// CLI is shown the repository's `.gemini/settings.json` without these members, and no `.gemini/.env`.
//
// The CLI does not say which MCP server it could not reach unless it is debugged: this does, as a line of its output.
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import path from "node:path";

const settings = path.resolve(".gemini/settings.json");
const environment = path.resolve(".gemini/.env");
const { existsSync, readFileSync } = fs;

function without(text) {
  let object;
  try {
    object = JSON.parse(text.replace(/("(?:\\.|[^"\\])*")|\/\/[^\n]*|\/\*[^]*?\*\//g, "$1"));
  } catch {
    return text; // the CLI refuses it, and names the file
  }
  if (typeof object !== "object" || object === null) return text;
  for (const name of ["coreTools", "excludeTools", "modelConfigs"]) delete object[name];
  for (const name of ["core", "exclude"]) delete object.tools?.[name];
  return JSON.stringify(object);
}

fs.existsSync = (name) => name !== environment && existsSync(name);
fs.readFileSync = (name, ...rest) => {
  const content = readFileSync(name, ...rest);
  return name === settings && typeof content === "string" ? without(content) : content;
};
syncBuiltinESMExports();

// The CLI puts a function of its own in place of console.log, which drops what it is told.
let log = console.log;
Object.defineProperty(console, "log", {
  get: () => (...words) => {
    const [, server, error] = /^\[MCP error\] Error .* MCP server '(.+?)': ([^]*)$/.exec(words[0]) ?? [];
    if (server) fs.writeSync(1, JSON.stringify({ type: "podmentor.mcp", server, error }) + "\n");
    return log(...words);
  },
  set: (other) => {
    log = other;
  },
});
