"""The workflows: that they are whole, and that what their steps run and read is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(path.stem for path in (ROOT / ".github" / "workflows").glob("*.yml"))
STEP = {"uses", "run", "with", "name", "if", "id"}
JOB = {"runs-on", "timeout-minutes", "strategy", "steps", "needs", "if", "environment", "permissions"}


def workflow(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return found


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert NAMES == ["nightly", "release"]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_and_steps_have_known_keys(name: str) -> None:
    found = workflow(name)
    assert set(found) <= {"name", True, "permissions", "jobs", "env"}  # YAML takes ``on`` for True
    assert set(found[True]) <= {"push", "schedule", "workflow_dispatch"}
    for job in found["jobs"].values():
        assert {"runs-on", "steps"} <= set(job) <= JOB
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(found["jobs"])
    for step in steps_of(name):
        assert set(step) <= STEP
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))


@pytest.mark.parametrize("name", NAMES)
def test_expressions_name_what_there_is(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    known = ("matrix.", "github.", "steps.", "format(", "contains(")
    for expression in re.findall(r"\$\{\{(.*?)\}\}", text):
        for word in re.findall(r"[a-z_]+[.(][\w.]*", re.sub(r"'[^']*'", "", expression)):
            assert word.startswith(known), expression
    for job in workflow(name)["jobs"].values():
        used = set(re.findall(r"matrix\.(\w+)", yaml.safe_dump(job)))
        assert used == set(job.get("strategy", {}).get("matrix", {}))
        identities = {step["id"] for step in job["steps"] if "id" in step}
        assert set(re.findall(r"steps\.(\w+)\.", yaml.safe_dump(job))) <= identities


@pytest.mark.parametrize("name", NAMES)
def test_each_make_target_is_there(name: str) -> None:
    lines = [line for step in steps_of(name) for line in re.findall(r"^make (.*)$", step.get("run", ""), re.M)]
    assert lines
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    for line in lines:
        targets = re.sub(r'\w+=("[^"]*"|\S+)', "", line).split()
        assert targets
        assert set(targets) <= set(phony)
        done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_there_or_made(name: str) -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["site_dir"]
    made = {"dist", site, "cpu.md"}
    for step in steps_of(name):
        given = step.get("with", {})
        for key in ("cache-dependency-path", "path"):
            assert key not in given or given[key] in made or (ROOT / given[key]).is_file()
    text = yaml.safe_dump(steps_of(name))
    assert "--out cpu.md" in text or "cpu.md" not in text


def test_options_of_campaigns_are_theirs() -> None:
    """Each line of the matrix; a number of cases comes with a seed."""
    job = workflow("nightly")["jobs"]["campaigns"]
    for entry in job["strategy"]["matrix"]["campaign"]:
        module, *given = entry.split()
        options = [word for word in given if word.startswith("--")]
        options += ["--seed"] if "--count" in options else []
        campaigns = ROOT / "tests" / "campaigns"
        shared = (campaigns / "batches.py").read_text()
        text = (campaigns / f"{module}.py").read_text()
        text += shared if "batches" in text else ""
        assert all(f'"{option}"' in text for option in options), entry
