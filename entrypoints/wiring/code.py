"""Build the sandboxes that run models' code and commands."""

from __future__ import annotations

from functools import partial

from antiphon.adapters.ids import new_tagged_id
from antiphon.adapters.prompts.skills import read_skills
from antiphon.application.ports import FileStore, Programs, Sandboxes, SharedValues
from antiphon.application.resources import containers as c
from antiphon.application.resources.server_addresses import server_tag
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import SkillIndex
from antiphon.application.resources.skills.mount import FindSkills
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import is_own_class
from antiphon.entrypoints.wiring.own_classes import Section
from antiphon.entrypoints.wiring.own_ports import load_port


def sandboxes(settings: Settings, owner: str) -> Sandboxes | None:
    """Return the sandboxes, or None if the code interpreter and the shell are off.

    Their ids begin with the tag of the server that is called `owner`.
    """
    new_id = partial(new_tagged_id, server_tag(owner))
    if not settings.code_interpreter and not settings.shell:
        return None
    if is_own_class(settings.sandboxes):
        section = Section("code", settings.code)
        own: Sandboxes = load_port(
            settings, "sandboxes", Sandboxes, section=section, shell=settings.shell, new_id=new_id
        )
        return own
    from antiphon.adapters.sandboxes.bubblewrap import (
        BubblewrapSandboxes,
        PoolLimits,
        SandboxTimeouts,
    )
    from antiphon.adapters.sandboxes.bwrap_command import Limits

    code = settings.code
    return BubblewrapSandboxes(
        python=code.python,
        new_id=new_id,
        limits=Limits(
            commands=settings.shell,
            memory_bytes=code.memory_mb * 1024**2,
            disk_bytes=code.disk_mb * 1024**2,
            cpu_s=code.cpu_s,
        ),
        pool_limits=PoolLimits(per_tenant=code.per_tenant, all=code.max_containers),
        timeouts=SandboxTimeouts(call_s=code.timeout_s, idle_s=code.idle_s),
        cgroup=code.cgroup,
    )


def programs(settings: Settings) -> Programs | None:
    """Return what runs models' programs, or None if they are off."""
    if not settings.programs:
        return None
    if is_own_class(settings.program_runner):
        own: Programs = load_port(
            settings, "program_runner", Programs, section=Section("code", settings.code)
        )
        return own
    from antiphon.adapters.sandboxes.quickjs import ProgramLimits, QuickjsPrograms

    code = settings.code
    limits = ProgramLimits(
        memory_bytes=code.program_memory_mb * 1024**2,
        cpu_s=code.program_cpu_s,
        calls=code.program_calls,
        step_s=2.0 * code.program_cpu_s + 10,
        steps=code.max_programs,
    )
    return QuickjsPrograms(limits)


def check_container(
    settings: Settings,
    files: FileStore,
    values: SharedValues,
    contents: SkillContents,
    sandboxes: Sandboxes | None,
) -> c.CheckContainer:
    """Raises: SettingsError for a skill of the operator's that cannot be used."""
    code = settings.code
    limits = c.ContainerLimits(
        memory_bytes=code.memory_mb * 1024**2,
        disk_bytes=code.disk_mb * 1024**2,
        idle_s=code.idle_s,
    )
    find_skills = FindSkills(
        SkillIndex(values),
        contents,
        read_skills(code.skills_dir) if code.skills_dir is not None else {},
        can_mount=sandboxes is not None and sandboxes.mounts_skills,
        max_bytes=limits.disk_bytes,
    )
    return c.CheckContainer(files, find_skills, limits)
