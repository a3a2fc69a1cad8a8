"""Programs that look for a way out, use up what there is, or are no programs at all.

All run in engines of this process, which have the limits of a sandbox. What only a process of its
own survives is in test_lying_processes.py, beside processes that somebody broke out into.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.sandboxes import quickjs_process

HARNESS = Path(quickjs_process.__file__).with_name("quickjs_harness.js").read_text("utf-8")
TIMED_OUT = "Error: no time is left."
BROKEN = "Error: the program changed what it runs on, so that it cannot go on."
MAX_ERROR_CHARS = 1000
LIMITS: Mapping[str, Any] = {
    "memory_bytes": 16 << 20,
    "stack_bytes": 256 << 10,
    "cpu_s": 0.04,
    "calls": 100,
    "parallel": 8,
    "arguments": 100_000,
    "output": 10_000,
    "error": MAX_ERROR_CHARS,
    "lines": 2,
    "timed_out": TIMED_OUT,
}
TOOLS = ["find", "get-x", "then", "__proto__", "constructor"]

Step = Mapping[str, Any]


def first_step(code: str, tools: Sequence[str] = ("find", "get-x")) -> Step:
    program = quickjs_process.ConfinedProgram(dict(LIMITS), HARNESS)
    source = {"code": code, "tools": tools, "seed": 7, "now": 1_700_000_000}
    step: Step = json.loads(program.run("begin", source))
    return step


def last_step(code: str, tools: Sequence[str] = ("find", "get-x")) -> Step:
    """Return the end of a program all of whose calls return null."""
    program = quickjs_process.ConfinedProgram(dict(LIMITS), HARNESS)
    source = {"code": code, "tools": tools, "seed": 7, "now": 1_700_000_000}
    step = json.loads(program.run("begin", source))
    outcome = {"text": "null", "is_json": True, "is_error": False}
    while step.get("calls"):
        assert len(step["calls"]) <= LIMITS["parallel"]
        step = json.loads(program.run("settle", [outcome] * len(step["calls"])))
    return dict(step)


# --- what a program can reach ---------------------------------------------------------------------

GLOBALS = """
Infinity NaN undefined globalThis Object Function Error EvalError RangeError ReferenceError
SyntaxError TypeError URIError InternalError AggregateError SuppressedError Iterator Array Number
Boolean String Symbol Math Reflect Proxy Map Set WeakMap WeakSet ArrayBuffer Uint8ClampedArray
Int8Array Uint8Array Int16Array Uint16Array Int32Array Uint32Array BigInt64Array BigUint64Array
Float16Array Float32Array Float64Array DataView Promise BigInt Date RegExp JSON DisposableStack
AsyncDisposableStack DOMException parseInt parseFloat isNaN isFinite queueMicrotask decodeURI
decodeURIComponent encodeURI encodeURIComponent escape unescape eval btoa atob tools text console
"""
"""All that there may be; another version of the engine may have less."""

WALK = """
const seen = new Set(), queue = [globalThis, (async () => {}).constructor, (function* () {})()];
const own = [];
while (queue.length) {
  const each = queue.pop();
  if ((typeof each !== "object" && typeof each !== "function") || each === null) continue;
  if (seen.has(each)) continue;
  seen.add(each);
  if (typeof each === "function" && !`${Function.prototype.toString.call(each)}`.includes("native"))
    own.push(each.name);
  queue.push(Object.getPrototypeOf(each));
  for (const key of Reflect.ownKeys(each)) {
    const found = Object.getOwnPropertyDescriptor(each, key);
    queue.push(found.value, found.get, found.set);
  }
}
return own.sort();
"""
"""Finds every function that is not the engine's: each is one that the harness has given."""

PROBES: Mapping[str, tuple[str, str]] = {
    "modules": ("try { await import('fs') } catch (e) { return e.name }", "ReferenceError"),
    "modules of the engine": (
        "const all = ['std', 'os', 'qjs:std', 'qjs:os', 'bjson'].map((name) => import(name));"
        "return (await Promise.allSettled(all)).filter((each) => each.value)",
        "[]",
    ),
    "files as modules": (
        "const all = ['/etc/passwd', './x.js', 'file:///etc/passwd', 'data:text/javascript,1'];"
        "return (await Promise.allSettled(all.map((p) => import(p)))).map((each) => each.status)",
        '["rejected","rejected","rejected","rejected"]',
    ),
    "a static import in eval": (
        "try { eval(\"import x from 'fs'\") } catch (e) { return e.name }",
        "SyntaxError",
    ),
    "eval": ("return eval('typeof process + typeof require')", "undefinedundefined"),
    "Function": ("return Function('return this')() === globalThis", "true"),
    "constructors of functions": (
        "const made = [() => 1, async () => 1, function* () {}, async function* () {}].map("
        "(each) => each.constructor('return typeof limits + typeof waiting + typeof report'));"
        "return [made[0](), await made[1](), made[2]().next().value,"
        " (await made[3]().next()).value]",
        json.dumps(["undefinedundefinedundefined"] * 4, separators=(",", ":")),
    ),
    "the caller of a program": (
        "return (function () { return typeof arguments.callee.caller + typeof this.limits })()",
        "undefinedundefined",
    ),
    "frames of the stack": (
        "Error.prepareStackTrace = (_, frames) => frames.map((each) => each.getFunction());"
        "return typeof new Error('x').stack",
        "string",
    ),
    "the handler of the stack": (
        "Object.defineProperty(Error, 'prepareStackTrace', { value: () => 1 });",
        "TypeError: property is not configurable (line 1)",
    ),
    "the real clock": (
        "const C = Object.getPrototypeOf(Date); const P = Date.prototype.constructor;"
        "return [new P().getTime(), P.now(), C.now, new (class extends Date {})().getTime(),"
        " Reflect.construct(Object, [], Date) instanceof Date, Date().slice(0, 15)]",
        '[1700000000000,1700000000000,null,1700000000000,true,"Tue Nov 14 2023"]',
    ),
    "the engine's WeakRef": (
        "return typeof WeakRef + typeof FinalizationRegistry",
        2 * "undefined",
    ),
    "threads": ("return [typeof Worker, typeof Atomics].join()", "undefined,undefined"),
    "shared memory": ("return typeof SharedArrayBuffer + typeof WebAssembly", 2 * "undefined"),
    "the prototype of tools": ("return Object.getPrototypeOf(tools)", "null"),
    "other tools": ("tools.secret = () => 1; return Object.keys(tools)", '["find","get-x"]'),
    "tools of another kind": (
        "try { await tools.web_search({}) } catch (e) { return e.message }",
        "Programs cannot call web_search. They can call: find, get-x.",
    ),
    "names of prototypes": (
        "const names = ['constructor', 'toString', 'valueOf', '__proto__', 'hasOwnProperty',"
        " '__defineGetter__', 'toJSON'];"
        "const all = await Promise.allSettled(names.map((name) => tools[name]({})));"
        "return all.every((each) => /^Programs cannot call/.test(each.reason.message))",
        "true",
    ),
    "tools as a promise": ("return Object.keys(await tools)", '["find","get-x"]'),
    "tools as a text": ("try { return `${tools}` } catch (e) { return e.name }", "TypeError"),
    "the handler of tools": (
        "delete tools.find; Object.defineProperty(tools, 'x', { value: 1 })",
        "TypeError: proxy: defineProperty exception (line 1)",
    ),
}
"""Programs that try to reach something, with what they write or end with."""


@pytest.mark.parametrize("probe", PROBES)
def test_a_program_reaches_nothing(probe: str) -> None:
    code, result = PROBES[probe]
    step = first_step(code)
    assert "calls" not in step
    if "Error: " in result:  # the engine's own words may change
        assert step["is_error"]
        assert step["result"].startswith(result.partition(":")[0])
    else:
        assert step == {"result": result, "is_error": False}


def test_there_are_no_globals_but_those_of_the_language() -> None:
    step = first_step("return Object.getOwnPropertyNames(globalThis)")
    assert set(json.loads(step["result"])) <= set(GLOBALS.split())
    assert first_step("return Object.getOwnPropertySymbols(globalThis).length")["result"] == "1"


def test_the_functions_of_the_harness_are_those_of_the_manual() -> None:
    functions = json.loads(first_step(WALK)["result"])
    given = ["Date", "constructor", "now", "random", "text", *["log"], *["find", "get-x", "get_x"]]
    assert set(filter(None, functions)) <= set(given)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_may_have_any_name(name: str) -> None:
    step = first_step(f"const call = tools[{json.dumps(name)}]; await call({{}})", TOOLS)
    assert step == {"calls": [[name, "{}"]]}


# --- what a program can use up --------------------------------------------------------------------

TIME: Sequence[str] = (
    "while (true) {}",
    "for (;;) await 1",
    "const f = () => Promise.resolve().then(f); f(); await new Promise(() => {})",
    "const f = () => { for (const _ of 'ab') queueMicrotask(f) }; f(); await new Promise(() => {})",
    "const f = () => queueMicrotask(f); f(); await new Promise(() => {})",
    "await { then(resolve) { resolve(this) } }",
    "function* g() { for (;;) yield 1 } for (const _ of g());",
    "async function* g() { for (;;) yield 1 } for await (const _ of g());",
    "try { for (;;); } finally { for (;;); }",
    "for (;;) { try { for (;;); } catch { for (;;); } finally { continue } }",
    "const f = async () => { for (;;) { try { await 1; for (;;); } catch {} } };"
    "await Promise.all([f(), f()])",
    "return /^(a+)+$/.test('a'.repeat(40) + 'b')",
    "return /(x+x+)+y/.exec('x'.repeat(100000))",
    "return [3, 1, 2].sort(() => { for (;;); })",
    "return { get a() { for (;;); } }",
    "return { toJSON() { for (;;); } }",
    "return [{ toString() { for (;;); } }].map(String)",
    "return new Proxy([], { get: (_, name) => (name === 'length' ? 1e9 : 1) })",
    "const e = Error(); Object.defineProperty(e, 'message', { get() { for (;;); } }); throw e",
    "const e = new Error('x'); Object.defineProperty(e, 'stack', { get() { for (;;); } }); throw e",
    "throw { toJSON() {}, toString() { for (;;); } }",
    "throw new Proxy({}, { getPrototypeOf() { for (;;); } })",
    "await tools.find(new Proxy({}, { ownKeys() { for (;;); } }))",
    "for (;;) { try { text('x'.repeat(1000)) } catch {} }",
    "for (;;) tools.find({})",
    "for (;;) { try { await tools.nope({}) } catch {} }",
    "const start = Date.now(); while (Date.now() === start);",
)
"""Programs that would compute for ever."""

MEMORY: Sequence[str] = (
    "const all = []; for (;;) all.push('x'.repeat(1000) + all.length)",
    "const all = []; for (;;) all.push(new Uint8Array(1e5))",
    "const all = []; for (;;) all.push(new Promise(() => {}))",
    "const all = new Map(); for (let n = 0; ; n++) all.set(n, {})",
    "function* g() { for (;;) yield 1 } return [...g()]",
    "return 'a'.padStart(2 ** 29)",
    "return new ArrayBuffer(2 ** 28)",
    "const b = new ArrayBuffer(1, { maxByteLength: 2 ** 28 }); b.resize(2 ** 28)",
    "let a = [1]; for (;;) a = a.concat(a)",
    "return 'a'.repeat(1e5).replace(/a/g, \"$'\")",
    "let f = () => 1; for (;;) f = f.bind()",
    "for (let n = 0; ; n++) globalThis['x' + n] = n",
    "let s = 'x'; for (;;) s += s",
)
"""Programs that would take all memory: each ends at its limit, or when its time is over."""

DEPTH: Sequence[str] = (
    "const f = () => f(); f()",
    "const o = {}; o.toString = () => `${o}`; return `${o}`",
    "const o = { toJSON() { return { o } } }; return o",
    "let o = []; for (let n = 0; n < 1e4; n++) o = [o]; return o",
    "return JSON.parse('['.repeat(1e5) + ']'.repeat(1e5))",
    "let o = {}; for (let n = 0; n < 1e4; n++) o = { o }; await tools.find(o)",
    "let p = {}; for (let n = 0; n < 1e4; n++) p = new Proxy(p, {}); return p.x",
    f"return {'(' * 10_000}1{')' * 10_000}",
    f"return {'[' * 10_000}{']' * 10_000}",
    f"return new RegExp('{'(' * 10_000}{')' * 10_000}').test('a')",
    "const g = function* () { yield* g() }; return [...g()]",
)
"""Programs that would use up the stack."""


@pytest.mark.parametrize("code", TIME)
def test_a_program_without_end_ends(code: str) -> None:
    started_at = time.process_time()
    assert last_step(code) == {"result": TIMED_OUT, "is_error": True}
    assert time.process_time() - started_at < 3


@pytest.mark.parametrize("code", MEMORY)
def test_a_program_that_takes_all_memory_ends(code: str) -> None:
    step = last_step(code)
    assert step["is_error"]
    assert any(
        word in step["result"] for word in ("memory", TIMED_OUT, "too long", "buffer length")
    )


@pytest.mark.parametrize("code", DEPTH, ids=range(len(DEPTH)))
def test_a_program_that_uses_up_the_stack_ends(code: str) -> None:
    step = last_step(code)
    assert step["is_error"]
    assert any(word in step["result"] for word in ("call stack", "memory", "too many", "stack"))
    assert len(step["result"]) < 200


@pytest.mark.parametrize(
    "code",
    [
        "throw new Error('x'.repeat(1e6))",
        "throw 'x'.repeat(1e6)",
        "throw ['x'.repeat(1e6)]",
        "const e = new Error(); e.name = { toString: () => 'x'.repeat(1e6) }; throw e",
        "await tools['x'.repeat(1e6)]({})",
        "await tools.find({ get a() { throw new Error('x'.repeat(1e6)) } })",
        "return { get a() { throw new Error('x'.repeat(1e6)) } }",
        "throw new Error('\\ud83d\\ude00'.repeat(1e5))",
    ],
)
def test_an_error_has_a_bound(code: str) -> None:
    step = first_step(code)
    assert step["is_error"]
    assert 10 < len(step["result"]) <= MAX_ERROR_CHARS + 10


def test_calls_have_a_bound_that_the_program_is_told_of() -> None:
    code = """
        const all = await Promise.allSettled(Array.from({ length: 1000 }, () => tools.find({})));
        return [all.filter((each) => each.status === "fulfilled").length, all.at(-1).reason.message]
    """
    assert last_step(code)["result"] == '[100,"A program may make 100 calls."]'
    assert "A program may make 100 calls." in last_step("for (;;) await tools.find({})")["result"]


# --- what is no program ---------------------------------------------------------------------------

TEXTS: Mapping[str, str] = {
    "": "",
    "\ufeffreturn 1": "1",
    "return 'a\x00b'": "a\x00b",
    "// \u2028return 1\nreturn 2": "1",
    "return '\\ud800'": "\ufffd",
    "return '\ud800'": "\ufffd",
    "return { a: '\\ud800' }": '{"a":"\\ud800"}',
    "return 1" + "+1" * 50_000: "50001",
    "return await 7": "7",
    "const __proto__ = 1; return { ['__proto__']: __proto__ }": '{"__proto__":1}',
    'return `${JSON.parse(\'{"__proto__": {"a": 1}}\').a}`': "undefined",
    "return 12n": "12",
    "return { a: 12n }": '{"a":"12"}',
    "return NaN": "NaN",
    "return -0": "0",
    "return [NaN, undefined, Infinity, Symbol('x'), () => 1]": "[null,null,null,null,null]",
    "return undefined": "",
    "text(undefined)": "undefined",
    "return null": "null",
    "return Symbol('x')": "Symbol(x)",
    "return () => 1": "() => 1",
    "return new Error('x')": "Error: x (line 1)",
    "return new Map([[1, 2]])": "{}",
    "console.log('a', 1n, [1], NaN, null, undefined)": "a 1 [1] NaN null undefined",
    "Promise.reject(new Error('nobody awaits it')); return 1": "1",
    "}) ; text('outside'); (async function() {": "outside",
    "Object.prototype.toJSON = () => 1; return {}": "1",
    "Array.prototype.toJSON = () => 1; Object.prototype.calls = [['find', '{}']]; return 2": "2",
    "Object.defineProperty(Object.prototype, 'result', { set() { throw 1 } }); return 1": "1",
    "String.prototype.toWellFormed = String.prototype.slice = () => ({}); return 'x'": "x",
    "Array.prototype.push = Array.prototype.join = Array.prototype.shift = null; return 'x'": "x",
    "JSON.stringify = JSON.parse = Reflect.apply = () => 1; return {}": "{}",
}
"""Programs that end well, with what they write."""

ERRORS: Mapping[str, str] = {
    "if (": "SyntaxError: ",
    "import fs from 'fs'": "SyntaxError: ",
    "export const a = 1": "SyntaxError: ",
    "return import.meta": "SyntaxError: ",
    "#!/usr/bin/node\nreturn 1": "SyntaxError: ",
    "\x00": "SyntaxError: ",
    "```js\nreturn 1\n```": "TypeError: not a function (line 1)",
    "with": "SyntaxError: ",
    "const a = {}; a.a = a; return a": "Error: What is written must be JSON. circular reference",
    "return { get a() { throw new Error('odd') } }": "Error: What is written must be JSON. odd",
    "return { toJSON() { throw null } }": "Error: What is written must be JSON. undefined",
    "throw 7": "Error: 7",
    "throw 'seven'": 'Error: "seven"',
    "throw 7n": "Error: something was thrown that cannot be shown.",
    "throw undefined": "Error: undefined",
    "throw null": "Error: null was thrown, or the memory was full.",
    "throw () => 1": "Error: () => 1",
    "throw Symbol('x')": "Error: something was thrown that cannot be shown.",
    "throw { a: 1 }": 'Error: {"a":1}',
    "const a = {}; a.a = a; throw a": "Error: something was thrown that cannot be shown.",
    "throw new Error('\\ud800')": "Error: \ufffd (line 1)",
    "throw Object.assign(new Error('x'), { name: 'y' })": "y: x (line 1)",
    "\n\nnull.x": "TypeError: cannot read property 'x' of null (line 3)",
    "throw new AggregateError([1], 'many')": "AggregateError: many (line 1)",
    "await tools.find(() => 1)": "Error: find: the arguments must be JSON.",
    "await tools.find(1n)": "Error: find: the arguments must be JSON. ",
    "const a = {}; a.a = a; await tools.find(a)": "Error: find: the arguments must be JSON. ",
    "Array.prototype[Symbol.iterator] = null; await Promise.all([tools.find({})])": "TypeError: ",
    "Object.defineProperty(Array.prototype, 0, { set() { throw 1 } }); text('x')": BROKEN,
    "Promise.prototype.then = null; return 'x'": BROKEN,
    "await new Promise(() => {})": "Error: the program waits for something that never happens.",
}
"""Programs that fail, with the start of what the model reads."""


@pytest.mark.parametrize("code", TEXTS, ids=range(len(TEXTS)))
def test_what_a_program_writes_can_be_read(code: str) -> None:
    assert first_step(code) == {"result": TEXTS[code], "is_error": False}


@pytest.mark.parametrize("code", ERRORS, ids=range(len(ERRORS)))
def test_why_a_program_fails_can_be_read(code: str) -> None:
    step = first_step(code)
    assert step["is_error"]
    assert step["result"].startswith(ERRORS[code])


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("tools.find()", "{}"),
        ("tools.find(null)", "null"),
        ("tools.find('\\ud800\\0')", '"\\ud800\\u0000"'),
        ("tools.find(JSON.parse('{\"__proto__\": 1}'))", '{"__proto__":1}'),
        ("tools.find({ a: undefined, b: NaN, c: () => 1 })", '{"b":null}'),
        ("tools.find({ toJSON: () => [1] })", "[1]"),
        ("tools.find(new Proxy({ a: 1 }, {}))", '{"a":1}'),
        ("tools.find(new Date())", '"2023-11-14T22:13:20.000Z"'),
        ("Object.prototype.x = 1; tools.find({})", "{}"),
        ("Array.prototype.toJSON = () => [['secret', '{}']]; tools.find({})", "{}"),
        ("Object.defineProperty(Array.prototype, 0, { set() {} }); tools.find({})", "{}"),
    ],
)
def test_the_arguments_of_a_call_are_json(code: str, arguments: str) -> None:
    assert first_step(code) == {"calls": [["find", arguments]]}


def test_arguments_that_call_have_their_order() -> None:
    code = "tools.find({ toJSON() { tools.find({ inner: 1 }); return { outer: 1 } } })"
    assert first_step(code)["calls"] == [["find", '{"inner":1}'], ["find", '{"outer":1}']]
