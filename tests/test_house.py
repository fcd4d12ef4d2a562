"""The root is a package: the guards that keep it working, and the wheel that proves it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
NOT_PACKAGE = {"tests", "benchmarks", "docs", "build", "dist", "demo"}


def package_folders() -> set[str]:
    """Every folder of the package that holds Python files, as dotted names."""
    names = set()
    for current, folders, files in os.walk(ROOT):
        relative = Path(current).relative_to(ROOT)
        if relative == Path():
            folders[:] = [f for f in folders if f not in NOT_PACKAGE and not f.startswith(".")]
        folders[:] = [f for f in folders if f != "__pycache__" and not f.endswith(".egg-info")]
        if any(name.endswith(".py") for name in files):
            names.add(".".join(["camp", *relative.parts]))
    return names


def package_files() -> list[Path]:
    return [path for name in package_folders() for path in ROOT.joinpath(*name.split(".")[1:]).glob("*.py")]


def test_pyproject_lists_every_package_folder() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["packages"]
    assert set(listed) == package_folders()
    assert all((ROOT.joinpath(*name.split(".")[1:]) / "__init__.py").is_file() for name in listed)


def test_type_checkers_see_every_root_item() -> None:
    links = {path.name for path in (ROOT / ".typing" / "camp").iterdir()}
    top = {name.split(".")[1] for name in package_folders() if "." in name}
    modules = {path.name for path in ROOT.glob("*.py")}
    assert links == top | modules | {"py.typed"}
    assert all((ROOT / ".typing" / "camp" / name).resolve() == ROOT / name for name in links)


def test_imports_inside_the_package_are_relative() -> None:
    rooms = {name.split(".")[1] for name in package_folders() if "." in name} | {"camp"}
    wrong = []
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[0] in rooms]
    assert wrong == []


def test_tests_are_not_a_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("program", ["camp", "camp_data"])
def test_help_imports_nothing_heavy(program: str) -> None:
    script = (
        "import sys\n"
        f"from camp.cli import {program}\n"
        f"try:\n    {program}(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'pyarrow', 'h5py', 'nltk', 'numpy', 'PIL', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr


def test_a_command_s_help_imports_nothing_heavy() -> None:
    script = (
        "import sys, importlib, pkgutil, camp.commands\n"
        "for module in pkgutil.iter_modules(camp.commands.__path__):\n"
        "    importlib.import_module('camp.commands.' + module.name)\n"
        "heavy = {'torch', 'pyarrow', 'h5py', 'nltk'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of this checkout. `--no-isolation`: the build tools are those of the dev extra."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "checkout of any name"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, tracked.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_sdist_and_wheel_hold_every_module_and_its_data(built: Path) -> None:
    expected = {path.relative_to(ROOT).as_posix() for path in package_files()}
    expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.toml")}
    expected |= {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "extractors/weights").glob("*.safetensors")
    }
    expected.add("py.typed")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {n.removeprefix("camp/") for n in archive.namelist() if n.startswith("camp/")}
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert expected <= in_sdist
    assert in_wheel >= expected
    assert not [name for name in in_wheel if name.startswith(("tests/", "benchmarks/"))]


def test_the_wheel_runs_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    home = tmp_path / "clean"
    venv.create(home, with_pip=True, symlinks=True)
    python = home / "bin" / "python"
    [wheel] = built.glob("*.whl")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # The dependencies are borrowed as a plain path: an editable install beside them stays out of sight.
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {"PATH": str(home / "bin"), "HOME": str(tmp_path)}

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    where = run(str(python), "-c", "import camp; print(camp.__file__)").strip()
    assert Path(where).is_relative_to(home)
    for program in ("camp", "camp-data"):
        assert "version" in run(str(home / "bin" / program), "--version")
    run(str(home / "bin" / "camp-data"), "sample", "drawn", "--images", "12")
    run(
        str(home / "bin" / "camp-data"), "import", "drawn/karpathy.json", "--format", "karpathy", "--out", "d"
    )
    assert "camp-sample" in run(str(home / "bin" / "camp-data"), "info", "d")
