"""A run with targets that an agent must not reach, and the agent of attempts.py that tries to reach them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from a2rl.agent_systems.definition import Agent
from a2rl.core.settings import Settings
from a2rl.execution.command import confinement_of
from a2rl.linux.orphans import MARKER
from a2rl.run.directory import RunDir
from a2rl.sandbox.command import AgentCommand, AgentExit
from a2rl.sandbox.isolation import Isolation, Layer, SandboxKind
from a2rl.sandbox.namespaces import TRY_NAMESPACES
from a2rl.sandbox.selection import Machine, examine
from tests.run_maker import spec

REPOSITORY = Path(__file__).resolve().parents[2]
GRADER = """
import ctypes, time
secret = ctypes.create_string_buffer(b"secret")
print(ctypes.addressof(secret), flush=True)
time.sleep(600)
"""
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from a2rl.sandbox.supervisor import main; main()"
NOBODY = 65534


@dataclass
class Scene:
    """The folders, the servers and a fake grader around an agent."""

    root: Path
    user: str
    python: str
    """The Python interpreter of agent and supervisor; for another user, one that this user may run."""
    facts: dict[str, Any] = field(default_factory=dict)
    without: frozenset[Layer] = frozenset()
    """Layers of the sandbox to leave out, as on machines that lack them."""

    @property
    def run(self) -> RunDir:
        return RunDir(self.root / "project" / "runs" / "mine")

    @property
    def network(self) -> list[dict[str, Any]]:
        """Returns the log of connections."""
        path = self.run.logs / "network.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def start(self, command: list[str], sandbox: SandboxKind) -> "subprocess.Popen[str]":
        """Starts a supervisor with an agent."""
        settings = Settings(self.root / "project", {"HOME": str(self.root / "home")})
        agent = Agent(id="mine", title="mine", start=("true",), folder=self.root / "project" / "agents" / "mine")
        workspace = self.run.workspace
        isolation = self.isolation(sandbox)
        confinement = confinement_of(self.run, agent, settings, isolation, connect=(self.facts["grading_port"],))
        environment = {
            "PATH": os.environ["PATH"], "TMPDIR": str(workspace / ".tmp"), "HOME": str(workspace / ".home"),
            MARKER: os.urandom(16).hex(),
        }  # fmt: skip
        work = AgentCommand(command, str(workspace), environment, str(self.run.logs / "agent.log"), confinement)
        supervisor = subprocess.Popen(
            [self.python, "-I", "-S", "-c", START, str(self.root / "lib")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", **as_user(self.user),
        )  # fmt: skip
        assert supervisor.stdin is not None
        supervisor.stdin.write(json.dumps(work._asdict()) + "\n")
        supervisor.stdin.flush()
        return supervisor

    def isolation(self, kind: SandboxKind) -> Isolation:
        """Returns the best isolation of a kind for this user."""
        best = examined(self.user, self.python, self.root).isolation(kind)
        return Isolation.of(kind, set(best.layers) - self.without)

    def attempts(self, sandbox: SandboxKind) -> dict[str, str]:
        """Runs attempts.py; returns the error of each attempt, or an empty string for one that succeeded."""
        log = self.run.logs / "agent.log"
        log.unlink(missing_ok=True)
        command = [self.python, "-I", "-S", str(self.run.workspace / "attempts.py"), json.dumps(self.facts)]
        with self.start(command, sandbox) as supervisor:
            assert supervisor.stdout is not None
            ended = AgentExit.of(json.loads(supervisor.stdout.readline()))
        said = log.read_text() if log.exists() else ""
        assert ended == AgentExit(0, "", ended.killed), f"{ended}: {said}"
        return dict(json.loads(said.splitlines()[-1]))


def as_user(user: str) -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if user == "nobody" else {}


@cache
def examined(user: str, python: str, root: Path) -> Machine:
    """Returns what this machine supports for the user of a scene, which root examines in the user's place."""
    machine = examine()
    if user == "nobody":
        command = [python, "-I", "-S", "-c", TRY_NAMESPACES, str(root / "lib"), "0"]
        errors = json.loads(subprocess.run(command, check=True, capture_output=True, **as_user("nobody")).stdout)
        machine = machine._replace(own=frozenset(layer for layer, error in errors.items() if not error))
    return machine


@contextmanager
def make_scene(user: str) -> Iterator[Scene]:
    """Makes all targets of attempts.py, owned by the user who runs it."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))).resolve()
        scene = Scene(root, user, "/usr/bin/python3" if user == "nobody" else sys.executable)
        _write_files(scene)
        if user == "nobody":
            for path in (root, *root.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        root.chmod(0o755)
        _add_set_user_id(scene)
        _share(scene, stack)
        _serve(scene, stack)
        _start_grader(scene, stack)
        yield scene


def _write_files(scene: Scene) -> None:
    library = scene.root / "lib" / "a2rl"
    for name in ("core", "linux", "sandbox"):
        shutil.copytree(REPOSITORY / "a2rl" / name, library / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "a2rl" / "__init__.py", library)
    project = scene.root / "project"
    run = RunDir.create(project / "runs", spec(run_id="mine"))
    places = {
        "hidden": project / "data" / "hidden" / "eval.jsonl",
        "ledger": run.root / "ledger.db",
        "records": run.record_path("baseline"),
        "other_run": project / "runs" / "other" / "workspace" / "trick.py",
        "home": scene.root / "home" / ".ssh" / "id_rsa",
        "project": project / "a2rl" / "score.py",
    }
    given = {
        run.given / "data" / "train.jsonl": "{}",
        run.given / "data" / "to_remove.jsonl": "{}",
        run.given / "models" / "tiny" / "model.safetensors": "weights",
        project / "agents" / "mine" / "agent.yaml": "mine",
    }
    for path, text in ({path: "secret" for path in places.values()} | given).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in (".tmp", ".home"):
        (run.workspace / name).mkdir(parents=True)
    for name in ("data", "models"):
        (run.workspace / name).symlink_to(f"../given/{name}")
    shutil.copy(Path(__file__).with_name("attempts.py"), run.workspace)
    scene.facts |= {name: str(path) for name, path in places.items()}
    scene.facts["workspace"] = str(run.workspace)
    disks = [path for path in Path("/dev").iterdir() if path.is_block_device()]
    scene.facts["disk"] = str(min(disks)) if disks else "/dev/none"


def _share(scene: Scene, stack: ExitStack) -> None:
    """Makes shared memory and a terminal of another process of the same user."""
    memory = Path(f"/dev/shm/a2rl-scene-{os.getpid()}-{scene.user}")
    memory.write_text("secret")
    stack.callback(memory.unlink, missing_ok=True)
    terminal, other = os.openpty()
    stack.callback(os.close, terminal)
    stack.callback(os.close, other)
    if scene.user == "nobody":
        os.chown(memory, NOBODY, NOBODY)
        os.chown(other, NOBODY, NOBODY)
    status = os.fstat(other)
    scene.facts |= {
        "shared_memory": str(memory),
        "terminal": os.ttyname(other),
        "terminal_identity": [status.st_rdev, status.st_dev],
    }


def _add_set_user_id(scene: Scene) -> None:
    """Adds a set-user-id program: it runs as root for an ordinary user, and as nobody for root."""
    program = scene.run.given / "data" / "id"
    shutil.copy(shutil.which("id") or "/usr/bin/id", program)
    if os.geteuid() == 0:
        os.chown(program, *((0, 0) if scene.user == "nobody" else (NOBODY, NOBODY)))
    program.chmod(0o4755)
    scene.facts["setuid"] = str(program)


def _serve(scene: Scene, stack: ExitStack) -> None:
    foreign = address_of_this_machine()
    grading = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
    scene.facts["grading_port"] = port = grading.getsockname()[1]
    other = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    scene.facts["other_port"] = other.getsockname()[1]
    scene.facts["foreign"] = foreign
    host = stack.enter_context(socket.create_server((foreign, port)))
    udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    scene.facts["udp_port"] = udp.getsockname()[1]
    for name, kind in (("local_socket", socket.SOCK_STREAM), ("datagram_socket", socket.SOCK_DGRAM)):
        server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        scene.facts[name] = str(scene.root / name)
        server.bind(scene.facts[name])
        Path(scene.facts[name]).chmod(0o666)
        if kind == socket.SOCK_STREAM:
            server.listen(64)
    for name, kind in (("abstract_socket", socket.SOCK_STREAM), ("abstract_datagram_socket", socket.SOCK_DGRAM)):
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        scene.facts[name] = f"a2rl-{scene.root.name}-{name}"
        abstract.bind("\0" + scene.facts[name])
        if kind == socket.SOCK_STREAM:
            abstract.listen()
    for server in (grading, other, host):
        threading.Thread(target=_accept_all, args=(server,), daemon=True).start()


def _accept_all(server: socket.socket) -> None:
    try:
        while True:
            server.accept()[0].close()
    except OSError:
        return  # the scene is over


def address_of_this_machine() -> str:
    """Returns an address other than 127.0.0.1. Other hosts would be refused in the same way, but may be unreachable."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"


def _start_grader(scene: Scene, stack: ExitStack) -> None:
    hidden = Path(scene.facts["hidden"])
    with hidden.open() as secret:
        grader = subprocess.Popen(
            [scene.python, "-I", "-S", "-c", GRADER], cwd=hidden.parent, env={"KEY": "secret"}, stdin=secret,
            stdout=subprocess.PIPE, text=True, **as_user(scene.user),
        )  # fmt: skip
    stack.callback(grader.wait)
    stack.callback(grader.kill)
    assert grader.stdout is not None
    scene.facts |= {"grader": grader.pid, "grader_address": int(grader.stdout.readline())}
    stack.callback(grader.stdout.close)
