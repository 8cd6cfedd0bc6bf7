"""Keys of cached results: all that shapes a result is part of them, and sources that changed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cache import fingerprint, objects
from ostinato.cache.fingerprint import InstalledPackage, entry_key, object_key
from ostinato.cache.objects import ObjectCache

PARTS = {
    "code": {"sources", "python", "numpy"},
    "entry": {"files", "python", "numpy", "ml_dtypes", "onnx"},
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of a package with a module and a subpackage."""
    folder = tmp_path / "package"
    (folder / "variables").mkdir(parents=True)
    for name in ("dtypes.py", "variables/expr.py", "core.so", "notes.txt"):
        (folder / name).write_text(f"# {name}\n")
    return folder


@pytest.mark.parametrize("what", PARTS)
def test_the_parts_of_keys(what):
    assert fingerprint._environment(what).keys() == PARTS[what]


@pytest.mark.parametrize("name", sorted(PARTS["entry"]))
def test_an_entry_depends_on_each_part(name, monkeypatch):
    """Constants are folded by NumPy, and bodies of functions come from ``onnx``."""
    before = entry_key("compiled graph", graph="g")
    monkeypatch.setitem(fingerprint._ENTRY_PARTS, name, lambda: "another version")
    fingerprint._environment.cache_clear()
    try:
        assert entry_key("compiled graph", graph="g") != before
    finally:
        fingerprint._environment.cache_clear()


def test_versions_are_found_without_an_import():
    script = (
        "import sys; from ostinato.cache.fingerprint import _version as v; a = v('onnx'); "
        "assert 'onnx' not in sys.modules; import onnx; assert onnx.__version__ in a; "
        "assert v('onnx') == a; assert v('no_such_package') == 'absent'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_all_sources_shape_code(package):
    """Element types and symbolic sizes as much as the generator itself."""
    seen = {InstalledPackage(str(package)).contents}
    for name in ("dtypes.py", "variables/expr.py"):
        (package / name).write_text("changed")
        seen.add(InstalledPackage(str(package)).contents)
    assert len(seen) == 3
    (package / "notes.txt").write_text("changed")
    assert InstalledPackage(str(package)).contents in seen


def test_sources_above_the_generator_do_not_shape_code(package):
    before = InstalledPackage(str(package))
    digest = before.contents
    for name in fingerprint.ABOVE_CODE:
        (package / name).mkdir()
        (package / name / "module.py").write_text("new")
    after = InstalledPackage(str(package))
    assert after.contents == digest
    assert after.files != before.files


def test_equal_sources_elsewhere_make_the_same_code(package, tmp_path):
    copy = package.rename(tmp_path / "copy")
    one = InstalledPackage(str(copy)).contents
    again = copy.rename(tmp_path / "again")
    assert InstalledPackage(str(again)).contents == one


@pytest.mark.parametrize("name", ["dtypes.py", "variables/expr.py", "core.so", "new.py"])
def test_an_upgrade_is_seen(package, name):
    imported = InstalledPackage(str(package))
    files = imported.files
    assert imported.unchanged()
    (package / name).write_text("of another version")
    imported._checked = (0, 0.0)  # as if some time had passed
    assert not imported.unchanged()
    assert imported.files == files
    after = InstalledPackage(str(package))
    assert after.unchanged()
    assert after.files != files


def test_sources_of_the_same_size_are_told_by_their_times(package):
    imported, path = InstalledPackage(str(package)), package / "dtypes.py"
    text, written = path.read_text(), path.stat().st_mtime_ns
    path.write_text(text.swapcase())
    os.utime(path, ns=(written, written + 1))
    assert not imported.unchanged()


def test_links_leave_sources_as_they_are(package, tmp_path):
    """Package managers and profilers make them."""
    imported = InstalledPackage(str(package))
    digest = imported.contents
    (tmp_path / "link.py").hardlink_to(package / "dtypes.py")
    (tmp_path / "link.so").hardlink_to(package / "core.so")
    assert imported.unchanged()
    after = InstalledPackage(str(package))
    assert after.contents == digest
    assert after.files != imported.files  # whatever has changed: the times say no more


def test_sources_that_have_changed_stay_so(package, monkeypatch):
    """Modules that were imported meanwhile may be of the other version; and nothing looks again."""
    imported = InstalledPackage(str(package))
    text, path = (package / "dtypes.py").read_text(), package / "dtypes.py"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text("of another version")
    assert not imported.unchanged()
    path.write_text(text)
    os.utime(path, ns=times)
    monkeypatch.setattr(fingerprint, "_modules", None)
    assert not imported.unchanged()


def test_sources_that_changed_before_they_were_read_have_no_digest(package):
    imported = InstalledPackage(str(package))
    (package / "dtypes.py").write_text("of another version")
    known = {InstalledPackage(str(package)).contents for _ in range(2)}
    assert len(known) == 1
    assert imported.contents not in known


def test_a_package_that_is_no_folder_is_not_known(tmp_path):
    one, other = (InstalledPackage(str(tmp_path / "archive.zip")) for _ in range(2))
    assert not one.unchanged()
    assert one.files != other.files


def test_a_process_that_was_upgraded_stores_nothing(package, tmp_path, monkeypatch):
    """Old code under the key of the new sources would be found by every later process."""
    imported = InstalledPackage(str(package))
    monkeypatch.setattr(objects, "INSTALLED", imported)
    cache = ObjectCache(tmp_path / "cache")
    cache.get_or_build("before", lambda: b"code")
    (package / "dtypes.py").write_text("of another version")
    imported._checked = (0, 0.0)
    assert cache.get_or_build("after", lambda: b"code") == b"code"
    cache.write_entry("entry", (1, 2))
    another = ObjectCache(tmp_path / "cache")
    assert another.find("before") == b"code"
    assert another.find("after") is None
    assert another.read_entry("entry") is None


def test_importing_the_package_describes_its_sources_first():
    script = (
        "import sys, ostinato; ours = [m for m in sys.modules if m.startswith('ostinato')]; "
        "sys.exit(sorted(ours) != ['ostinato', 'ostinato.cache', 'ostinato.cache.fingerprint'])"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_log_names_the_parts(caplog):
    with caplog.at_level(logging.DEBUG, "ostinato.cache"):
        key = object_key("kernel", "target")
    (record,) = caplog.records
    for name in (*PARTS["code"], "kernel", "target", key[:12]):
        assert name in record.getMessage()


def test_nothing_imports_logging_for_a_start(tmp_path):
    script = (
        "import sys, numpy; before = 'logging' in sys.modules; import ostinato as ost; "
        "g = ost.Graph('g'); g.set_outputs([g.exp(g.input('x', (3,)))]); "
        "ost.Session('cpu').compile(g); sys.exit('logging' in sys.modules and not before)"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            env=os.environ | {"OSTINATO_CACHE_DIR": str(tmp_path)},
        )


def test_a_key_is_logged_while_another_thread_imports_logging():
    """A module that is being imported has some of its names alone."""
    script = """
import importlib.abc, importlib.util, sys, threading

from ostinato.cache import fingerprint

assert "logging" not in sys.modules
begun, logged = threading.Event(), []


class Half(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "logging" else None

    def exec_module(self, module):
        begun.set()
        logs.join(0.3)

        class Logger:
            def debug(self, *message):
                logged.append(message)

        module.getLogger = lambda name: Logger()


def log():
    begun.wait()
    fingerprint.log("key %s", 1)


sys.meta_path.insert(0, Half())
logs = threading.Thread(target=log)
logs.start()
import logging

logs.join()
assert logged == [("key %s", 1)], logged
"""
    subprocess.run([sys.executable, "-c", script], check=True)
