// What a program sees of the world: `tools`, `text`, `console`, a clock that stands still and
// random numbers that follow from a seed. A repeated program makes the same calls in the same order.
//
// The value of this file is a function that only the process around it can call. The program may
// change every global object, so what is needed later is kept in constants first.
(limits) => {
  "use strict";
  const { parse, stringify } = JSON;
  const { Error, SyntaxError, Promise, String, Proxy, Map, Set, Date: NativeDate } = globalThis;
  const { apply, construct, defineProperty, setPrototypeOf } = Reflect;
  const AsyncFunction = (async () => {}).constructor;
  const { join, push, shift } = Array.prototype;
  const { slice, toWellFormed: replaceLoneSurrogates } = String.prototype;
  const toWellFormed = (value) => apply(replaceLoneSurrogates, value, []);

  // Without a prototype, to which the program might add setters and `toJSON`.
  const list = (...values) => {
    setPrototypeOf(values, null);
    return values;
  };

  // When these tell of something depends on the machine, and the rest is of no use without them.
  const UNREPEATABLE =
    ["performance", "WeakRef", "FinalizationRegistry", "Atomics", "SharedArrayBuffer"];
  const OUT_OF_MEMORY = "The memory was full.";

  const hide = (object, name, value) =>
    defineProperty(object, name, { value, writable: true, configurable: true });

  const waiting = list();
  const asked = list();
  const lines = list();
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

  // What is no JSON but has a text is written as that: 12n, NaN, a symbol, a function.
  const show = (value) => {
    if (value instanceof Error) return describe(value);
    if (typeof value !== "object") return String(value);
    try {
      return String(stringify(value, (_, each) => (typeof each === "bigint" ? `${each}` : each)));
    } catch (error) {
      throw refusal(`What is written must be JSON. ${error?.message}`);
    }
  };

  const write = (value) => {
    const line = show(value);
    length += line.length + 1;
    if (length > limits.output) {
      throw refusal(`A program may write ${limits.output} characters.`);
    }
    apply(push, lines, [toWellFormed(line)]);
  };

  const shorten = (text) => {
    const cut = text.length > limits.error ? `${apply(slice, text, [0, limits.error])}…` : text;
    return toWellFormed(cut);
  };

  const describe = (error) => {
    try {
      if (error === null) return "Error: null was thrown, or the memory was full.";
      if (!(error instanceof Error)) return shorten(`Error: ${stringify(error) ?? `${error}`}`);
      if (has([error])) return shorten(`Error: ${error.message}`);
      const place = /:(\d+):\d+\)?\s*$/m.exec(error.stack ?? "");
      const line = place === null ? 0 : place[1] - limits.lines;
      const where = line > 0 ? ` (line ${line})` : "";
      return `${shorten(`${error.name}: ${error.message}`)}${where}`;
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
    const functions = Object.create(null);
    for (const name of tools) functions[name] = (input) => call(name, input);
    for (const name of tools) {
      const identifier = name.replace(/[^A-Za-z0-9_$]/g, "_");
      if (functions[identifier] === undefined) hide(functions, identifier, functions[name]);
    }
    const known = tools.join(", ") || "none";
    globalThis.tools = new Proxy(Object.freeze(functions), {
      get: (_, name) => {
        if (functions[name] !== undefined) return functions[name];
        if (typeof name === "symbol" || name === "then") return undefined;
        return () =>
          Promise.reject(refusal(`Programs cannot call ${name}. They can call: ${known}.`));
      },
    });
    globalThis.text = (...values) => values.forEach(write);
    const log = (...values) =>
      write(values.map((each) => (typeof each === "string" ? each : show(each))).join(" "));
    globalThis.console = { log, info: log, debug: log, warn: log, error: log };

    function Date(...values) {
      if (new.target === undefined) return `${new Date()}`;
      return construct(NativeDate, values.length ? values : [now * 1000], new.target);
    }
    for (const name of ["UTC", "parse"]) hide(Date, name, NativeDate[name]);
    hide(Date, "now", () => now * 1000);
    hide(NativeDate.prototype, "constructor", Date);
    defineProperty(Date, "prototype", { value: NativeDate.prototype, writable: false });
    hide(globalThis, "Date", Date);

    let state = seed | 0;
    Math.random = () => {
      state = (state + 0x6d2b79f5) | 0;
      let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
      mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
    for (const name of UNREPEATABLE) delete globalThis[name];
    // A program would get the functions of this file, which called it.
    const never = { value: undefined, writable: false, configurable: false };
    defineProperty(Error, "prepareStackTrace", never);
  };

  const compile = (code) => {
    try {
      return construct(AsyncFunction, [code]);
    } catch (error) {
      // Another one has no place in the program: it is nested too deeply, or too large.
      throw error instanceof SyntaxError ? error : refusal(error?.message ?? OUT_OF_MEMORY);
    }
  };

  const begin = (source) => {
    setUp(source);
    // A syntax error is the program's own, so it is thrown where its other errors are.
    const main = async () => compile(source.code)();
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
      const calls = list();
      let size = 0;
      while (waiting.length && asked.length < limits.parallel) {
        size += waiting[0].text.length;
        if (calls.length && size > limits.arguments) break;
        const each = apply(shift, waiting, []);
        apply(push, asked, [each]);
        apply(push, calls, [list(each.name, each.text)]);
      }
      return { __proto__: null, calls };
    }
    if (end === null) {
      end = { error: "Error: the program waits for something that never happens." };
    }
    if (end.error !== undefined) apply(push, lines, [end.error]);
    const result = apply(join, lines, ["\n"]);
    return { __proto__: null, result, is_error: end.error !== undefined };
  };

  return (command, payload) => {
    if (command === "begin") begin(parse(payload));
    else if (command === "settle") parse(payload).forEach(settle);
    else return stringify(report());
  };
};
