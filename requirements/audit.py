"""Ask for known vulnerabilities of what is locked: `make audit`.

It fails for a vulnerability, and if pip-audit fails. Where the advisories cannot be reached, it
says so and succeeds: a machine without a network cannot know better.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).with_name("dev.txt")
UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "MaxRetryError", "ProxyError")


def main() -> int:
    """Return the status of the process: 0, or 1 for what must be looked at."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip"),
        *("--require-hashes", "--format", "json", "--progress-spinner", "off"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        if any(name in done.stderr for name in UNREACHABLE):
            return _say("NOT AUDITED: the advisories cannot be reached from this machine.")
        return _say(f"pip-audit failed:\n{done.stderr}", status=1)
    packages: list[Any] = json.loads(done.stdout)["dependencies"]
    skipped = [each for each in packages if "skip_reason" in each]
    if len(skipped) == len(packages):
        return _say(
            "NOT AUDITED: the index that this machine uses has no advisories of any package."
        )
    for package in skipped:
        _say(f"not audited: {package['skip_reason']}")
    found = [(package, each) for package in packages for each in package.get("vulns", ())]
    for package, each in found:
        fixes = ", ".join(each["fix_versions"]) or "no version"
        _say(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixes}")
    count = len(packages) - len(skipped)
    return _say(f"{count} packages audited, {len(found)} vulnerabilities", status=int(bool(found)))


def _say(text: str, *, status: int = 0) -> int:
    sys.stdout.write(f"{text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
