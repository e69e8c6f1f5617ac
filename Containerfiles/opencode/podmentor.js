// An OpenCode plugin.  `opencode run --format json` tells a text when it is complete, a tool call when it has ended,
// and nothing of retries or of sub-agents.  This prints these things when they happen, in the same form: one JSON
// object a line, beside the lines of OpenCode itself (which come again, so whoever reads them looks at the part's id).
//
//   {type: "session", version, model}                         the first line
//   {type: "podmentor.mcp", server, error}                    a server of tools that could not be started or reached
//   {type: "delta", part: {id, messageID, type}, delta}       a piece of a text or of reasoning
//   {type: "tool_start", part}                                a tool call begins
//   {type: "retry", attempt, delay, message, statusCode}      the provider is asked again in `delay` milliseconds
//   {type: "error", error}                                    it will not be asked again
//   step_start, text, reasoning, tool_use, step_finish        as OpenCode has them
//
// `parent` in a line: the id of the part of the tool call whose sub-agent speaks.
//
// OpenCode ends without waiting for what it has written, so whoever reads slowly would lose the end of a long output:
// here every line is written before the next step is taken.
//
// OpenCode asks five times more when the provider is overloaded, and waits as long as the provider wishes.
//
// What a repository's own configuration says of providers, models and permissions does not count: the run's does
// (OPENCODE_CONFIG_CONTENT), and what OpenCode writes into that file is taken back.
import { readdirSync, readFileSync, statSync, utimesSync, writeFileSync, writeSync } from "node:fs";

const RETRIES = limit(process.env.OPENCODE_MAX_RETRIES, 3);
const LONGEST_WAIT = 1000 * limit(process.env.OPENCODE_MAX_RETRY_SECONDS, 30);
const LINE_OF = { "step-start": "step_start", "step-finish": "step_finish" };

function limit(text, fallback) {
  const number = Number.parseInt(text ?? "", 10);
  return number >= 0 ? number : fallback;
}

const clock = new Int32Array(new SharedArrayBuffer(4));

function writeAll(chunk, encoding) {
  let rest = Buffer.from(chunk, encoding);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest));
    } catch (error) {
      if (error.code !== "EAGAIN") return false; // nobody reads any more
      Atomics.wait(clock, 0, 0, 2); // the pipe is full: sleep for 2 ms
    }
  }
  return true;
}

process.stdout.write = (chunk, encoding, done) => {
  const written = writeAll(chunk, typeof encoding === "string" ? encoding : undefined);
  (typeof encoding === "function" ? encoding : done)?.();
  return written;
};

function print(type, sessionID, rest) {
  process.stdout.write(JSON.stringify({ type, timestamp: Date.now(), sessionID, ...rest }) + "\n");
}

// The members of the configuration that are the run's alone.
const RUNS = ["model", "small_model", "provider", "enabled_providers", "disabled_providers", "permission", "default_agent"];
// The same of the agent that the run is; what others may do is for their makers to say.
const AGENTS = ["disable", "mode", "permission", "tools", "steps", "maxSteps"];
const own = JSON.parse(process.env.OPENCODE_CONFIG_CONTENT || "{}");

// `merged` with nothing in it but what `given` has as well; where both have a value, it is that of `given`.
function only(merged, given) {
  if (typeof merged !== "object" || merged === null || Array.isArray(merged)) return merged;
  return Object.fromEntries(Object.keys(given).map((name) => [name, only(merged[name], given[name])]));
}

function keep(config, given, names) {
  for (const name of names) {
    if (given && name in given) config[name] = only(config[name], given[name]);
    else delete config[name];
  }
}

function isOffered(model) {
  const [provider, ...rest] = model.split("/");
  return own.provider?.[provider]?.models?.[rest.join("/")] !== undefined;
}

// OpenCode adds "$schema" to a configuration file that lacks it, whenever it reads it.  The script that starts it keeps
// copies of such files; a file that is the copy with this edit, and no other, becomes the copy again.
const kept = process.env.PODMENTOR_KEPT;
const edited = (kept ? readdirSync(kept) : []).map((name) => {
  const text = readFileSync(`${kept}/${name}`, "utf8");
  const added = text.replace(/^\s*\{/, '{\n  "$schema": "https://opencode.ai/config.json",');
  return { file: name.replace("%", "/"), text, added, times: statSync(`${kept}/${name}`) };
});

function takeBack() {
  for (const { file, text, added, times } of edited) {
    try {
      if (readFileSync(file, "utf8") !== added) continue;
      writeFileSync(file, text);
      utimesSync(file, times.atime, times.mtime);
    } catch {
      // the agent has removed it
    }
  }
}

// The status of the provider's newest answer: what OpenCode tells of a retry has only words.
let status;
const plainFetch = globalThis.fetch;
globalThis.fetch = Object.assign(async (...args) => {
  status = undefined;
  const response = await plainFetch(...args);
  status = response.status;
  return response;
}, plainFetch);

export const Podmentor = async ({ client }) => {
  const types = new Map(); // of text parts that are being told, by id
  const begun = new Set(); // tool calls
  const parents = new Map(); // of sub-agents' sessions
  let main; // the session of the run: the first that there is
  let version;
  let announced = false;
  let gaveUp = false;

  function part(sessionID, part) {
    const rest = parents.has(sessionID) ? { part, parent: parents.get(sessionID) } : { part };
    if (part.type === "tool") {
      const state = part.state;
      if (part.tool === "task" && state.metadata?.sessionId) parents.set(state.metadata.sessionId, part.id);
      if (state.status === "running" && !begun.has(part.callID)) {
        begun.add(part.callID);
        print("tool_start", sessionID, rest);
      }
      if (state.status === "completed" || state.status === "error") print("tool_use", sessionID, rest);
    } else if (part.type in LINE_OF) {
      print(LINE_OF[part.type], sessionID, rest);
    } else if (part.type === "text" || part.type === "reasoning") {
      if (part.time?.end) {
        types.delete(part.id);
        print(part.type, sessionID, rest);
      } else types.set(part.id, part.type);
    }
  }

  async function retry(sessionID, { attempt, message, next }) {
    const delay = Math.max(0, next - Date.now());
    if (attempt <= RETRIES && delay <= LONGEST_WAIT) {
      print("retry", sessionID, { attempt, delay, message, statusCode: status });
      return;
    }
    if (gaveUp) return;
    gaveUp = true;
    const data = { message, statusCode: status, isRetryable: true, attempts: attempt, retryAfter: delay };
    print("error", sessionID, { error: { name: "APIError", data } });
    await client.session.abort({ path: { id: main ?? sessionID } });
  }

  takeBack();
  process.on("exit", takeBack);

  return {
    config: async (config) => {
      keep(config, own, RUNS);
      const agents = config.agent ?? {};
      for (const agent of Object.values(agents)) {
        if (own.provider && agent.model && !isOffered(agent.model)) delete agent.model;
      }
      if (agents.build) keep(agents.build, own.agent?.build, AGENTS);
    },
    // What the agent runs has a configuration directory of its own, and no use for the token.
    "shell.env": async (_, output) => {
      Object.assign(output.env, { XDG_CONFIG_HOME: "", OPENCODE_API_KEY: "", OPENCODE_CONFIG_CONTENT: "", PODMENTOR_KEPT: "" });
    },
    // Without a limit of the model in its configuration OpenCode asks for 32000 tokens at most, by a parameter that
    // some models refuse.
    "chat.params": async (input, output) => {
      if (input.model.providerID === "gateway" && !input.model.limit?.output) output.maxOutputTokens = undefined;
    },
    event: async ({ event: { type, properties } }) => {
      const sessionID = properties?.sessionID;
      if (type.startsWith("session.")) takeBack();
      if (type === "session.created" || type === "session.updated") {
        main ??= sessionID;
        version ??= properties.info.version;
      }
      if (type === "message.updated" && properties.info.role === "assistant" && sessionID === main && !announced) {
        announced = true;
        print("session", main, { version, model: properties.info.modelID });
        const servers = Object.entries((await client.mcp.status()).data ?? {});
        for (const [server, { status: state, error }] of servers) {
          if (state !== "connected" && state !== "disabled") print("podmentor.mcp", main, { server, error: error ?? state });
        }
      }
      if (type === "session.status" && properties.status.type === "retry") await retry(sessionID, properties.status);
      if (sessionID !== main && !parents.has(sessionID)) return;
      if (type === "message.part.updated") part(sessionID, properties.part);
      if (type === "message.part.delta" && properties.field === "text" && types.has(properties.partID)) {
        const rest = { id: properties.partID, messageID: properties.messageID, type: types.get(properties.partID) };
        const parent = parents.get(sessionID);
        print("delta", sessionID, { part: rest, delta: properties.delta, ...(parent && { parent }) });
      }
    },
  };
};
