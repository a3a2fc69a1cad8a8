"""Programs that models use run in a sandbox, although it allows only the system calls they need."""

from __future__ import annotations

import shutil
from contextlib import aclosing

import pytest

from antiphon.application.ports import CommandExit, CommandOutput, Sandbox

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

PYTHON = {
    "threads": """
import queue, threading
results = queue.Queue()
threads = [threading.Thread(target=results.put, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sorted(results.get() for _ in range(8)) == list(range(8))
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(abs, range(-50, 0))) == 1275
""",
    "asyncio": """
import asyncio
async def main():
    reader, writer = await asyncio.open_unix_connection('/tmp/echo.sock')
    writer.write(b'hello\\n')
    assert await reader.readline() == b'hello\\n'
    writer.close()
async def echo(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()
async def serve():
    server = await asyncio.start_unix_server(echo, '/tmp/echo.sock')
    await asyncio.wait_for(main(), 5)
    await asyncio.to_thread(print, 'from a thread')
    server.close()
asyncio.run(serve())
""",
    "mmap": """
import mmap
with open('/tmp/mapped', 'w+b') as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 0) as area:
        area[5000:5005] = b'hello'
        area.flush()
    file.seek(5000)
    assert file.read(5) == b'hello'
""",
    "sqlite3": """
import sqlite3
with sqlite3.connect('/tmp/a.db') as db:
    db.execute('pragma journal_mode = wal')
    db.execute('create table t(a)')
    db.executemany('insert into t values (?)', [(n,) for n in range(100)])
    assert db.execute('select sum(a) from t').fetchone() == (4950,)
""",
    "files": """
import os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'a', 'b')
    path.mkdir(parents=True)
    path.joinpath('c').write_text('x' * 100_000)
    path.joinpath('link').symlink_to('c')
    os.link(path / 'c', path / 'hard')
    os.utime(path / 'c', (10**9, 10**9))
    os.chmod(path / 'c', 0o600)
    shutil.copytree(folder, folder + '-copy', symlinks=True)
    shutil.copy2(path / 'c', path / 'd')
    os.replace(path / 'd', path / 'e')
    assert sorted(os.listdir(path)) == ['c', 'e', 'hard', 'link']
    os.mkfifo(path / 'fifo')
    shutil.make_archive('/tmp/archive', 'zip', folder)
    assert [each.name for each in os.scandir(folder)] == ['a']
""",
    "signals and clocks": """
import select, signal, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
time.sleep(0.01)
assert time.monotonic() and time.process_time() and time.thread_time()
poll = select.poll()
poll.register(0)
poll.poll(1)
select.epoll().poll(0.001)
""",
    "chance, users and limits": """
import os, platform, random, resource, secrets, uuid
secrets.token_hex(); uuid.uuid4(); random.SystemRandom().random()
assert os.getuid() == 65534 and os.cpu_count() and platform.machine()
resource.getrusage(resource.RUSAGE_SELF)
len(os.sched_getaffinity(0)), os.getloadavg(), os.times(), os.uname()
""",
    "numbers and texts": """
import csv, datetime, decimal, fractions, hashlib, io, json, lzma, bz2, statistics, zlib, zoneinfo
assert lzma.decompress(lzma.compress(b'x' * 1000)) == bz2.decompress(bz2.compress(b'x' * 1000))
datetime.datetime.now(zoneinfo.ZoneInfo('UTC'))
assert statistics.stdev([1, 2, 3]) == 1
""",
}

PYTHON_WITH_PROCESSES = {
    "subprocess": """
import subprocess
done = subprocess.run(['sort'], input='b\\na\\n', capture_output=True, text=True, timeout=10)
assert done.stdout == 'a\\nb\\n', done
assert subprocess.run('echo $((6 * 7)) | cat', shell=True, capture_output=True).stdout == b'42\\n'
""",
    "multiprocessing": """
import multiprocessing
context = multiprocessing.get_context('fork')
receiver, sender = context.Pipe()
process = context.Process(target=lambda: sender.send(sum(range(10))))
process.start()
assert receiver.recv() == 45
process.join()
""",
    "asyncio with processes": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    out, _ = await process.communicate(b'hello')
    assert out == b'hello'
asyncio.run(asyncio.wait_for(main(), 10))
""",
}

COMMANDS = {
    "sh": ("printf '3\\n1\\n2\\n' | sort -n | tail -1", "3"),
    "tar": ("mkdir d; echo hi > d/f; tar czf d.tgz d; rm -r d; tar xzf d.tgz; cat d/f", "hi"),
    "gzip": ("echo hi | gzip | gunzip", "hi"),
    "xz": ("echo hi | xz | xz -d", "hi"),
    "find": ("mkdir -p a/b; touch a/b/c.txt; find a -name '*.txt' | xargs ls", "a/b/c.txt"),
    "grep": ("printf 'one\\ntwo\\n' > n; grep -rc t n", "1"),
    "sort": ("seq 200000 | sort -R | sort -n -S 1M --parallel=2 | head -1", "1"),
    "awk": ("seq 10 | awk '{ sum += $1 } END { print sum }'", "55"),
    "sed": ("echo cat > s; sed -i s/c/b/ s; cat s", "bat"),
    "perl": ('perl -e \'open(my $f, "-|", "echo hi"); print <$f>\'', "hi"),
    "dd": ("dd if=/dev/zero of=z bs=4k count=8 conv=fsync status=none; stat -c %s z", "32768"),
    "cp": (
        "echo hi > x; cp -a x y; mv y w; ln -s w l; cat l; chmod 600 w; touch -d 2020-01-01 w",
        "hi",
    ),
    "timeout": ("timeout 0.1 sleep 10; echo $?", "124"),
    "tee": ("echo hi | tee t1 t2 > t3; cmp t1 t2 && cat t3", "hi"),
    "git": (
        "export HOME=/tmp; git init -q r && cd r && git config user.email a@b && "
        "git config user.name a && echo hi > f && git add f && git commit -qm one && "
        "git log --format=%s",
        "one",
    ),
    "sqlite3": (
        "sqlite3 a.db 'create table t(a); insert into t values(42); select * from t'",
        "42",
    ),
    "python3": ("python3 -c 'import subprocess; print(subprocess.getoutput(\"echo hi\"))'", "hi"),
}


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with a shell"])
def with_commands(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("what", PYTHON)
async def test_python_runs(sandbox: Sandbox, what: str) -> None:
    result = await sandbox.run(PYTHON[what])
    assert not result.is_error, result.logs


@pytest.mark.parametrize("what", PYTHON_WITH_PROCESSES)
async def test_python_runs_processes(sandbox: Sandbox, what: str, with_commands: bool) -> None:
    result = await sandbox.run(PYTHON_WITH_PROCESSES[what])
    assert result.is_error is not with_commands, result.logs


@pytest.mark.parametrize("program", COMMANDS)
async def test_programs_run(sandbox: Sandbox, program: str, with_commands: bool) -> None:
    if not with_commands:
        pytest.skip("this sandbox has no shell")
    if shutil.which(program, path="/usr/bin:/bin") is None:
        pytest.skip(f"{program} is not installed here")
    command, output = COMMANDS[program]
    printed = errors = ""
    code = None
    async with aclosing(sandbox.command(command)) as outputs:
        async for each in outputs:
            if isinstance(each, CommandOutput):
                printed += each.stdout
                errors += each.stderr
            elif isinstance(each, CommandExit):
                code = each.code
    assert (printed.strip(), code) == (output, 0), errors
