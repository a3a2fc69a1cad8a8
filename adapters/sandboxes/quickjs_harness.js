// What a program sees of the world: `tools`, `text`, `console`, a clock that stands still and
// random numbers that follow from a seed. A repeated program makes the same calls in the same order.
//
// The value of this file is a function that only the process around it can call. The program may
// change every global object, so what is needed later is kept in constants first.
(limits) => {
  "use strict";
  const { parse, stringify } = JSON;
  const { Error, Promise, String, Proxy, Map, Set, Date: NativeDate } = globalThis;
  const { apply, construct } = Reflect;
  const AsyncFunction = (async () => {}).constructor;
  const toWellFormed = (value) => apply(String.prototype.toWellFormed, value, []);
  const { push, shift } = Array.prototype;

  const waiting = [];
  const asked = [];
  const lines = [];
  let length = 0;
  let made = 0;
  let end = null;

  // Errors of this file: the line in them is none of the program's.
  const ours = new Set();
  const has = apply.bind(undefined, Set.prototype.has, ours);
  const refusal = (message) => {
    const error = new Error(message);
    ours.add(error);
    return error;
  };

  const write = (value) => {
    let line;
    if (typeof value === "string") line = value;
    else if (value instanceof Error) line = describe(value);
    else {
      try {
        line = stringify(value, (_, each) => (typeof each === "bigint" ? `${each}` : each));
      } catch {}
      if (typeof line !== "string") line = String(value);
    }
    length += line.length + 1;
    if (length > limits.output) {
      throw refusal(`A program may write ${limits.output} characters.`);
    }
    apply(push, lines, [toWellFormed(line)]);
  };

  const describe = (error) => {
    try {
      if (error === null) return "Error: null was thrown, or the memory was full.";
      if (!(error instanceof Error)) return `Error: ${toWellFormed(stringify(error) ?? `${error}`)}`;
      if (has([error])) return toWellFormed(`Error: ${error.message}`);
      const place = /:(\d+):\d+\)?\s*$/m.exec(error.stack ?? "");
      const line = place === null ? 0 : place[1] - limits.lines;
      return toWellFormed(`${error.name}: ${error.message}${line > 0 ? ` (line ${line})` : ""}`);
    } catch {
      return "Error: something was thrown that cannot be shown.";
    }
  };

  const toJson = (name, input) => {
    try {
      return stringify(input);
    } catch (error) {
      throw refusal(`${name}: the arguments must be JSON. ${error?.message}`);
    }
  };

  const call = (name, input) =>
    new Promise((resolve, reject) => {
      if (made >= limits.calls) throw refusal(`A program may make ${limits.calls} calls.`);
      const text = toJson(name, input === undefined ? {} : input);
      if (typeof text !== "string") throw refusal(`${name}: the arguments must be JSON.`);
      if (text.length > limits.arguments) {
        throw refusal(`${name}: arguments may have ${limits.arguments} characters.`);
      }
      made += 1;
      apply(push, waiting, [{ name, text, resolve, reject }]);
    });

  const settle = (outcome) => {
    const { resolve, reject } = apply(shift, asked, []);
    if (outcome.is_error) reject(refusal(outcome.text));
    else resolve(outcome.is_json ? parse(outcome.text) : outcome.text);
  };

  const setUp = ({ tools, seed, now }) => {
    const functions = new Map();
    for (const name of tools) functions.set(name, (input) => call(name, input));
    for (const name of tools) {
      const identifier = name.replace(/[^A-Za-z0-9_$]/g, "_");
      if (!functions.has(identifier)) functions.set(identifier, functions.get(name));
    }
    const get = apply.bind(undefined, Map.prototype.get, functions);
    const known = tools.join(", ") || "none";
    globalThis.tools = new Proxy(Object.freeze(Object.create(null)), {
      get: (_, name) => {
        if (typeof name === "symbol" || name === "then") return undefined;
        const found = get([name]);
        if (found !== undefined) return found;
        return () =>
          Promise.reject(refusal(`Programs cannot call ${name}. They can call: ${known}.`));
      },
      has: (_, name) => functions.has(name),
      ownKeys: () => [...tools],
      getOwnPropertyDescriptor: (_, name) =>
        functions.has(name)
          ? { value: get([name]), enumerable: true, configurable: true }
          : undefined,
    });
    globalThis.text = (...values) => values.forEach(write);
    const log = (...values) =>
      write(values.map((each) => (typeof each === "string" ? each : stringify(each))).join(" "));
    globalThis.console = { log, info: log, debug: log, warn: log, error: log };

    class FixedDate extends NativeDate {
      constructor(...values) {
        if (values.length) super(...values);
        else super(now * 1000);
      }
    }
    FixedDate.now = () => now * 1000;
    globalThis.Date = new Proxy(FixedDate, { apply: () => `${new FixedDate()}` });
    NativeDate.prototype.constructor = globalThis.Date;
    FixedDate.prototype.constructor = globalThis.Date;

    let state = seed | 0;
    Math.random = () => {
      state = (state + 0x6d2b79f5) | 0;
      let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
      mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
    // When these tell of something depends on the machine.
    for (const name of ["performance", "WeakRef", "FinalizationRegistry", "Atomics"]) {
      delete globalThis[name];
    }
  };

  const begin = (source) => {
    setUp(source);
    // A syntax error is the program's own, so it is thrown where its other errors are.
    const main = async () => construct(AsyncFunction, [source.code])();
    main().then(
      (value) => {
        try {
          if (value !== undefined) write(value);
          end = {};
        } catch (error) {
          end = { error: describe(error) };
        }
      },
      (error) => {
        end = { error: describe(error) };
      },
    );
  };

  const report = () => {
    if (end?.error === undefined && waiting.length) {
      const calls = [];
      let size = 0;
      while (waiting.length && asked.length < limits.parallel) {
        size += waiting[0].text.length;
        if (calls.length && size > limits.arguments) break;
        const each = apply(shift, waiting, []);
        apply(push, asked, [each]);
        apply(push, calls, [[each.name, each.text]]);
      }
      return { calls };
    }
    if (end === null) {
      end = { error: "Error: the program waits for something that never happens." };
    }
    if (end.error !== undefined) apply(push, lines, [end.error]);
    return { result: lines.join("\n"), is_error: end.error !== undefined };
  };

  return (command, payload) => {
    if (command === "begin") begin(parse(payload));
    else if (command === "settle") parse(payload).forEach(settle);
    else return stringify(report());
  };
};
