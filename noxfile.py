"""Every way to run this project, one nox session each: `nox --list` is the menu.

All sessions but `isolated` and `interop` share one virtual environment, `.nox/house`, because torch is large: torch
goes in first, then every package of `packages/torch-*` (editable, with its `all` extra), for the tests every folder of
`integrations` with the framework that it joins to, and the tools of the session, always under `constraints.txt`, so
that no second torch is pulled in. Where nox itself runs beside a torch, the house uses that one and leaves it alone.
pip runs again only when a stamp shows that something it reads has changed.

Adding a package needs no edit here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent
HOUSE = ROOT / ".nox" / "house"
BIN = HOUSE / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = sorted(p.parent.name for p in ROOT.glob("packages/torch-*/pyproject.toml"))
INTEGRATIONS = sorted(p.parent.name for p in ROOT.glob("integrations/*/pyproject.toml"))
OLDEST_TORCH = Version("2.11")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # of a test process; the processes already fill the machine

TEST_TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "pytest-cov", "hypothesis", "rich", "nox")
TOOLS = {
    "demo": ("rich",),
    "tests": TEST_TOOLS,
    "interop": (*TEST_TOOLS, "setuptools", "wheel"),
    "lint": ("ruff", "import-linter"),
    "types": ("basedpyright",),
    "docs": ("sphinx", "myst-parser", "furo"),
    "build": ("build", "hatchling", "twine"),
    "bench": ("rich",),
}
# Published as source only, for current torch.
INTEROP = {"torch-scatter": "2.1.2", "torch-sparse": "0.6.18"}

nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests"]


# --- what is chosen, from what is there ---


def import_name(package: str) -> str:
    """`torch-tcgnn` -> `torch_tcgnn`."""
    return package.replace("-", "_")


def choose(arguments: Iterable[str], packages: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split a session's arguments into names of packages and what is left for the command behind it."""
    known = set(packages)
    arguments = list(arguments)
    return [a for a in arguments if a in known], [a for a in arguments if a not in known]


def test_paths(chosen: Iterable[str]) -> list[str]:
    """pytest's arguments for some packages; none chosen means everything, as pyproject.toml says."""
    chosen = list(chosen)
    if not chosen:
        return []
    paths = [p for name in chosen for p in (f"tests/{name}", f"packages/{name}")]
    paths += ["tests/conformance"]
    return [p for p in paths if (ROOT / p).exists()] + [f"--package={name}" for name in chosen]


def without_torch(constraints: str, *, triton: bool) -> str:
    """The constraints beside a torch that the house did not install: no pin of it or of what comes with its build.

    Triton's pin goes only where ``triton`` came with that torch.
    """
    ours = re.compile(rf"(torch|{'triton|' if triton else ''}numpy|nvidia-[\w-]+|cuda-[\w-]+)==")
    return "".join(line for line in constraints.splitlines(keepends=True) if not ours.match(line))


def stamp(constraints: str, projects: Iterable[str], requirements: Iterable[str], python: str = sys.version) -> str:
    """A digest of all that decides what pip would install."""
    parts = [python, constraints, *projects, *requirements]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def workers() -> str:
    """Processes for pytest: every one imports torch, so more than eight cost more than they bring."""
    return str(min(os.cpu_count() or 1, 8))


def needed_files(requirements: Iterable[str], site: list[str]) -> list[Path]:
    """Top-level files and folders of all that pip would install for `requirements`, found in the folders `site`."""
    found: dict[Path, None] = {}
    waiting = [Requirement(r) for r in requirements]
    installed = {canonicalize_name(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=site)}
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        if name not in installed:
            raise LookupError(f"{requirement} is required but not installed in {site}")
        distribution = installed[name]
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                found[Path(distribution.locate_file(top))] = None
        waiting += [Requirement(r) for r in distribution.requires or ()]
    return list(found)


def left_out(wheel: Path, source: Path) -> list[str]:
    """Files under `source` (kernels' sources and py.typed among them) that the wheel does not hold."""
    files = {
        p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    return sorted(files - set(zipfile.ZipFile(wheel).namelist()))


# --- the house ---


def site_packages(environment: Path) -> Path:
    if os.name == "nt":
        return environment / "Lib" / "site-packages"
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def library_folders() -> list[Path]:
    """Where the house's Python finds packages: its own folder, and that of an outer torch."""
    own = site_packages(HOUSE)
    outer = own / "outer.pth"
    return [own, *([Path(outer.read_text().strip())] if outer.exists() else [])]


def outer_torch() -> Path | None:
    """The site-packages of a torch beside nox that is new enough to use, if there is one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or Version(importlib.metadata.version("torch")) < OLDEST_TORCH:
        return None
    return Path(spec.origin).parent.parent


def run(session: nox.Session, *arguments: str | Path, silent: bool = False, **env: str) -> object:
    """Run the house's Python; `silent` returns what it printed."""
    return session.run(str(PYTHON), *map(str, arguments), external=True, silent=silent, env=env)


def pip(session: nox.Session, *arguments: str | Path) -> None:
    run(session, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def house(session: nox.Session, group: str) -> None:
    """Make the house fit for the sessions of `group`; does nothing when it is."""
    outer_line = site_packages(HOUSE) / "outer.pth"
    if not PYTHON.exists():
        session.log("making .nox/house")
        venv.create(HOUSE, with_pip=True, clear=True, symlinks=os.name != "nt")
        if outer := outer_torch():
            outer_line.write_text(f"{outer}\n")
    constraints = CONSTRAINTS.read_text()
    constraints_file = CONSTRAINTS
    if outer_line.exists():
        constraints = without_torch(constraints, triton=(Path(outer_line.read_text().strip()) / "triton").is_dir())
        constraints_file = HOUSE / "constraints.txt"
        constraints_file.write_text(constraints)

    editable = [f"packages/{name}[all]" for name in PACKAGES]
    if group == "tests":
        editable += [f"integrations/{name}" for name in INTEGRATIONS]
    projects = [(ROOT / path.partition("[")[0] / "pyproject.toml").read_text() for path in editable]
    wanted = stamp(constraints, projects, [*editable, *TOOLS[group]])
    stamp_file = HOUSE / "stamps" / group
    if stamp_file.exists() and stamp_file.read_text() == wanted:
        return
    if not any((folder / "torch").is_dir() for folder in library_folders()):
        session.log("installing torch (once)")
        index = os.environ.get("TORCH_INDEX_URL")
        pip(session, "torch", "-c", constraints_file, *(["--index-url", index] if index else []))
    session.log(f"installing {len(editable)} package(s) and the tools of '{group}' (again only when they change)")
    flags = [part for path in editable for part in ("-e", path)]
    pip(session, *flags, *TOOLS[group], "-c", constraints_file)
    stamp_file.parent.mkdir(exist_ok=True)
    stamp_file.write_text(wanted)


# --- sessions ---


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: every package on real data; ends in demo-report/index.html. `-- --data DIR`, `-- --only NAME`."""
    house(session, "demo")
    run(session, "examples/demo.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Unit, conformance and doctests on the CPU, Triton in its interpreter. `-- torch-tcgnn` for one package."""
    run_pytest(session, "not slow and not gpu")


@nox.session
def slow(session: nox.Session) -> None:
    """The tests marked slow (minutes). `-- torch-tcgnn` for one package."""
    run_pytest(session, "slow and not gpu")


def run_pytest(session: nox.Session, marks: str) -> None:
    house(session, "tests")
    chosen, rest = choose(session.posargs, PACKAGES)
    pace = ("-n", workers(), "--dist=worksteal", "--timeout=900")
    run(session, "-m", "pytest", *pace, "-m", marks, *test_paths(chosen), *rest, **ONE_THREAD)


@nox.session(venv_backend="venv", reuse_venv=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def isolated(session: nox.Session, package: str) -> None:
    """Builds the wheel, installs it with only what it requires, runs tests/PACKAGE/smoke.py outside the checkout."""
    house(session, "build")
    smoke = ROOT / "tests" / package / "smoke.py"
    if not smoke.exists():
        session.error(f"tests/{package}/smoke.py is missing: a few lines that import the package and call its main op")
    folder = Path(session.create_tmp()).resolve()
    run(session, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, f"packages/{package}")
    (wheel,) = folder.glob("*.whl")
    session.install("--no-deps", "--force-reinstall", str(wheel))
    wheel.unlink()
    target = site_packages(Path(session.virtualenv.location))
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    for path in needed_files(project["dependencies"], [str(p) for p in library_folders()]):
        if not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    session.chdir(folder)
    session.run("python", "-I", str(smoke))


@nox.session(venv_backend="venv", reuse_venv=True)
def interop(session: nox.Session) -> None:
    """Builds torch-scatter and torch-sparse from source (ten minutes, once) and runs tests/integrations with them.

    They live in an environment of their own on top of the house: PyTorch Geometric behaves differently where they are.
    """
    house(session, "interop")
    wheels = ROOT / ".nox" / "wheels" / wheel_key()
    wheels.mkdir(parents=True, exist_ok=True)
    for name, version in INTEROP.items():
        if not list(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
            began = time.monotonic()
            session.log(f"building {name} {version}; this takes many minutes, once")
            arguments, env = wheel_build(name, version, wheels)
            run(session, *arguments, **env)
            session.log(f"built {name} {version} in {(time.monotonic() - began) / 60:.1f} min")
    layered = site_packages(Path(session.virtualenv.location))
    (layered / "house.pth").write_text(
        "".join(f"import site; site.addsitedir({str(p)!r})\n" for p in library_folders())
    )
    session.install("--no-deps", *map(str, sorted(wheels.glob("*.whl"))))
    session.run("python", "-m", "pytest", "-m", "not gpu", "tests/integrations", *session.posargs, env=ONE_THREAD)


def wheel_key() -> str:
    """The folder of wheels built against one torch and one Python: `torch2.13.0+cpu-cp311`."""
    versions = importlib.metadata.distributions(name="torch", path=[str(p) for p in library_folders()])
    return f"torch{next(iter(versions)).version}-cp{sys.version_info[0]}{sys.version_info[1]}"


def wheel_build(name: str, version: str, wheels: Path, jobs: int | None = None) -> tuple[list[str], dict[str, str]]:
    """The arguments of the house's Python, and the environment, that build one interop wheel into the folder `wheels`.

    torch-scatter builds without ninja and is told to compile several extensions at once; torch-sparse builds with
    ninja, where that setting would make two extensions write one build.ninja. So each gets its own, never both.
    """
    jobs = jobs or min(os.cpu_count() or 1, 8)
    env = {"CFLAGS": "-g0"}
    if name == "torch-scatter":
        config = wheels / "parallel.cfg"
        config.write_text(f"[build_ext]\nparallel = {jobs}\n")
        env["DIST_EXTRA_CONFIG"] = str(config)
    else:
        env["MAX_JOBS"] = str(jobs)
    flags = ["--no-deps", "--no-build-isolation", "--no-binary", name, "--wheel-dir", str(wheels)]
    return ["-m", "pip", "wheel", *flags, f"{name}=={version}"], env


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, and the floors: which module may import which (import-linter)."""
    house(session, "lint")
    run(session, "-m", "ruff", "check", *session.posargs)
    session.run(str(BIN / "lint-imports"), external=True)


@nox.session
def types(session: nox.Session) -> None:
    """basedpyright on the public API."""
    house(session, "types")
    counted = run(session, "-m", "basedpyright", "--pythonpath", PYTHON, "--stats", *session.posargs, silent=True)
    session.log(str(counted))
    if not re.search(r"Total files checked: [1-9]", str(counted)):
        session.error("basedpyright checked no file: see [tool.basedpyright] in pyproject.toml")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation with every warning an error, then every example in it."""
    house(session, "docs")
    for builder in ("html", "doctest"):
        run(session, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder, "docs", f"docs/_build/{builder}")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and source archives of packages and integrations (or of packages named), checked by twine, into dist/."""
    house(session, "build")
    chosen, _ = choose(session.posargs, PACKAGES)
    folders = [f"packages/{name}" for name in chosen or PACKAGES]
    for folder in folders + ([] if chosen else [f"integrations/{name}" for name in INTEGRATIONS]):
        run(session, "-m", "build", "--no-isolation", "--outdir", "dist", folder)
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        (wheel,) = ROOT.glob(f"dist/{import_name(project['name'])}-{project['version']}-*-none-any.whl")
        if lost := left_out(wheel, ROOT / folder / "src"):
            session.error(f"{wheel.name} lacks {', '.join(lost)}")
    run(session, "-m", "twine", "check", "--strict", *sorted(ROOT.glob("dist/torch_*")))


@nox.session
def bench(session: nox.Session) -> None:
    """Ours beside its peers on what this machine has. `-- torch-tcgnn --out results.json`."""
    house(session, "bench")
    run(session, "-m", "benchmarks", *session.posargs)
