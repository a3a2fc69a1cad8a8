"""The process that runs one program: it reads requests, a line each, and answers each with a line.

The first request is `{"source", "limits"}`, and each later one a list of outcomes. This file is
passed to the process as text (quickjs.py), after a prelude that has imported `quickjs` and has
given up every right.
"""

import json
import sys
import time
from typing import Any

import quickjs

HARNESS = "HARNESS"
"""Replaced by quickjs_harness.js."""

OUT_OF_MEMORY = "Error: the program used more than {} MB of memory."
BROKEN = "Error: the program changed what it runs on, so that it cannot go on."


class ConfinedProgram:
    """A program in an engine of its own, with the limits of this process."""

    def __init__(self, limits: dict[str, Any], harness: str = HARNESS) -> None:
        self.limits = limits
        self.ends_at = time.process_time() + limits["cpu_s"]
        self.context = quickjs.Context()
        self.context.set_memory_limit(limits["memory_bytes"])
        self.context.set_max_stack_size(limits["stack_bytes"])
        self.context.set_time_limit(limits["cpu_s"])
        make = self.context.eval(harness)
        self.harness = make(self.context.parse_json(json.dumps(limits)))

    def run(self, command: str, payload: object) -> str:
        """Run all jobs, and return what the program does next, as JSON.

        A program that used up its time or its memory cannot be trusted to report anything.
        """
        try:
            self.harness(command, json.dumps(payload))
            while self.context.execute_pending_job():
                if time.process_time() > self.ends_at:
                    return fail(self.limits["timed_out"])
            answer = self.harness("report", "")
        except (quickjs.JSException, UnicodeError) as error:
            if "interrupted" in str(error):
                return fail(self.limits["timed_out"])
            if str(error).startswith(("null", "InternalError: out of memory")):
                return fail(OUT_OF_MEMORY.format(self.limits["memory_bytes"] >> 20))
            return fail(BROKEN)
        return answer if isinstance(answer, str) else fail(BROKEN)


def fail(why: str) -> str:
    return json.dumps({"result": why, "is_error": True})


def main() -> None:
    first = json.loads(sys.stdin.buffer.readline())
    program = ConfinedProgram(first["limits"])
    command, payload = "begin", first["source"]
    while True:
        answer = program.run(command, payload).replace("\n", " ")
        sys.stdout.buffer.write(answer.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()
        if not (line := sys.stdin.buffer.readline()):
            return
        command, payload = "settle", json.loads(line)


if __name__ == "__main__":
    main()
