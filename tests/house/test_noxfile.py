"""The decisions of noxfile.py, without running a session."""

import importlib.metadata
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nox", reason="nox is not installed in this environment")

import noxfile

ROOT = Path(noxfile.__file__).parent


def test_every_folder_of_packages_is_found():
    with_a_project = sorted(p.name for p in (ROOT / "packages").iterdir() if (p / "pyproject.toml").exists())
    assert with_a_project == noxfile.PACKAGES
    assert "torch-tcgnn" in with_a_project


def test_every_integration_is_found_and_builds_a_package_of_its_own():
    with_a_project = sorted(p.name for p in (ROOT / "integrations").iterdir() if (p / "pyproject.toml").exists())
    assert with_a_project == noxfile.INTEGRATIONS
    for folder in noxfile.INTEGRATIONS:
        project = tomllib.loads((ROOT / "integrations" / folder / "pyproject.toml").read_text())["project"]
        source = ROOT / "integrations" / folder / "src" / noxfile.import_name(project["name"])
        assert (source / "__init__.py").exists()
        assert (source / "py.typed").exists()
        line = f"integrations/{folder}/src"
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
        assert line in settings["pythonpath"], f'pyproject.toml, pythonpath: add the line "{line}",'


def test_names_of_packages_are_taken_out_of_the_arguments():
    chosen, rest = noxfile.choose(["-k", "spmm", "torch-tcgnn", "-x"], ["torch-mgg", "torch-tcgnn"])
    assert (chosen, rest) == (["torch-tcgnn"], ["-k", "spmm", "-x"])


def test_no_package_chosen_leaves_the_choice_of_paths_to_pyproject():
    assert noxfile.test_paths([]) == []


def test_one_package_brings_its_doctests_and_its_share_of_conformance():
    arguments = noxfile.test_paths(["torch-tcgnn"])
    assert "packages/torch-tcgnn" in arguments
    assert "--package=torch-tcgnn" in arguments
    assert all(a.startswith("--") or (ROOT / a).exists() for a in arguments)


def test_an_outer_torch_keeps_its_own_companions():
    dropped = ["torch==2.13.0", "triton==3.7.1", "nvidia-cuda-nvrtc==13.0.88", "cuda-core==1.2.2", "numpy==2.4.6"]
    kept = ["# torch==1", "torch-geometric==2.8.1", "rich==15.0.0"]
    assert noxfile.without_torch("\n".join(dropped + kept), triton=True).splitlines() == kept
    assert noxfile.without_torch(dropped[1], triton=False) == dropped[1]


@pytest.mark.parametrize("position", range(4))
def test_the_stamp_changes_with_everything_pip_reads(position):
    before = ["constraints", ["project"], ["tool"], "3.11"]
    after = list(before)
    after[position] = ["other"] if position in (1, 2) else "other"
    assert noxfile.stamp(*before) == noxfile.stamp(*before)
    assert noxfile.stamp(*before) != noxfile.stamp(*after)


def test_a_wheel_alone_gets_what_it_requires_and_nothing_else():
    site = sorted({str(Path(d.locate_file("")).resolve()) for d in importlib.metadata.distributions()})
    names = {path.name for path in noxfile.needed_files(["torch>=2.11"], site)}
    assert {"torch", "sympy", "mpmath", "typing_extensions.py"} <= names
    assert not names & {"numpy", "pytest", "_pytest"}


def test_a_requirement_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(LookupError, match=r"torch>=2\.11 is required"):
        noxfile.needed_files(["torch>=2.11"], [str(tmp_path)])


def test_the_two_interop_builds_never_share_their_settings(tmp_path):
    scatter, scatter_env = noxfile.wheel_build("torch-scatter", "2.1.2", tmp_path, jobs=2)
    sparse, sparse_env = noxfile.wheel_build("torch-sparse", "0.6.18", tmp_path, jobs=2)
    assert "MAX_JOBS" not in scatter_env
    assert "parallel = 2" in Path(scatter_env["DIST_EXTRA_CONFIG"]).read_text()
    assert sparse_env["MAX_JOBS"] == "2"
    assert "DIST_EXTRA_CONFIG" not in sparse_env
    assert scatter[-1] == "torch-scatter==2.1.2"
    assert sparse[-1] == "torch-sparse==0.6.18"


def test_a_kernel_source_missing_from_the_wheel_is_named(tmp_path):
    source = tmp_path / "src" / "torch_x"
    (source / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "py.typed", "kernels/spmm.cu"):
        (source / name).touch()
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("torch_x/__init__.py", "")
        wheel.writestr("torch_x/py.typed", "")
    assert noxfile.left_out(tmp_path / "x.whl", tmp_path / "src") == ["torch_x/kernels/spmm.cu"]


def test_the_folder_of_an_environment_is_the_one_python_uses():
    assert noxfile.site_packages(Path(sys.prefix)).resolve() == Path(sysconfig.get_path("purelib")).resolve()
