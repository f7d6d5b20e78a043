from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from agentprof.agent.workspace import ToolInputError, Workspace, copy_workspace, remove_workspace
from agentprof.errors import InputError, RunError


def test_copy_is_private_whole_and_without_byproducts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("src", "src/__pycache__", ".git", ".pytest_cache"):
        (source / folder).mkdir(parents=True)
        (source / folder / "file").write_text(folder)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("src/file")
    workspace = copy_workspace(source)
    try:
        root = workspace.root
        assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["link", "run.sh", "src", "src/file"]
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert stat.S_IMODE(workspace.scratch.stat().st_mode) == 0o700
        assert os.access(root / "run.sh", os.X_OK)
        assert (root / "link").readlink() == Path("src/file")
        (root / "src" / "file").write_text("changed")
        assert (source / "src" / "file").read_text() == "src"
    finally:
        remove_workspace(workspace)
    assert not root.exists()
    assert not workspace.scratch.exists()


def test_copies_of_one_source_list_alike(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.utime(tmp_path / "file", (1, 1))
    one = copy_workspace(tmp_path)
    os.utime(tmp_path / "file", (2, 2))
    two = copy_workspace(tmp_path)
    try:
        assert one.root != two.root
        assert len(str(one.root)) == len(str(two.root))
        assert (one.root / "file").stat().st_mtime == (two.root / "file").stat().st_mtime
        assert one.root.stat().st_mtime == two.root.stat().st_mtime
    finally:
        remove_workspace(one)
        remove_workspace(two)


def test_a_read_only_source_becomes_writable(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "src" / "file").write_text("x")
    (source / "src" / "file").chmod(0o444)
    (source / "src").chmod(0o555)
    workspace = copy_workspace(source)
    try:
        assert stat.S_IMODE((workspace.root / "src").stat().st_mode) & 0o700 == 0o700
        assert stat.S_IMODE((workspace.root / "src" / "file").stat().st_mode) & 0o600 == 0o600
    finally:
        remove_workspace(workspace)


def test_a_source_that_is_no_folder_is_one_clear_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=r"missing is not a folder") as caught:
        copy_workspace(missing)
    assert "\n" not in str(caught.value)


def test_a_source_that_cannot_be_copied_names_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    source, temporary = tmp_path / "source", tmp_path / "temporary"
    source.mkdir()
    temporary.mkdir()
    os.mkfifo(source / "pipe")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(InputError, match="pipe") as caught:
        copy_workspace(source)
    assert "\n" not in str(caught.value)
    assert list(temporary.iterdir()) == []


def test_removing_copes_with_locked_folders_and_with_being_done_twice(workspace: Workspace) -> None:
    locked = workspace.root / "locked" / "inner"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0)
    locked.parent.chmod(0)
    remove_workspace(workspace)
    assert not workspace.root.exists()
    remove_workspace(workspace)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/one.py", "src/one.py"),
        ("./src/../notes.txt", "notes.txt"),
        ("", "."),
        (".", "."),
        ("src/missing.py", "src/missing.py"),
        ("/workspace", "."),
        ("/workspace/src/one.py", "src/one.py"),
    ],
)
def test_paths_inside(workspace: Workspace, path: str, expected: str) -> None:
    resolved = workspace.resolve(path)
    assert workspace.name_of(resolved) == expected
    assert resolved == workspace.resolve(str(resolved))


@pytest.mark.parametrize(
    "path", ["..", "../x", "src/../../x", "/etc/passwd", "/", "/workspace/../etc/passwd", "/workspacex", "out/passwd"]
)
def test_paths_outside_are_refused(workspace: Workspace, path: str) -> None:
    (workspace.root / "out").symlink_to("/etc")
    with pytest.raises(ToolInputError, match="outside the workspace"):
        workspace.resolve(path)


def test_a_sibling_whose_name_begins_alike_is_outside(workspace: Workspace) -> None:
    with pytest.raises(ToolInputError, match="outside the workspace"):
        workspace.resolve(str(workspace.scratch / "file"))


def test_links_that_stay_inside_are_followed(workspace: Workspace) -> None:
    (workspace.root / "alias").symlink_to("src")
    assert workspace.name_of(workspace.resolve("alias/one.py")) == "src/one.py"


def test_a_folder_swapped_for_a_link_after_resolving_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one.py").write_text("secret")
    resolved = workspace.resolve("src/one.py")
    (workspace.root / "src").rename(workspace.root / "moved")
    (workspace.root / "src").symlink_to(outside)
    with pytest.raises(OSError, match="src"), workspace.open_beneath(resolved, os.O_RDONLY):
        pass
    (workspace.root / "last").symlink_to(outside / "one.py")
    with pytest.raises(OSError, match="last"), workspace.open_beneath(workspace.root / "last", os.O_RDONLY):
        pass


def test_where_it_will_be_is_told_before_anything_is_made(tmp_path: Path) -> None:
    told: list[tuple[Workspace, bool]] = []
    workspace = copy_workspace(tmp_path, lambda new: told.append((new, new.root.exists())))
    remove_workspace(workspace)
    assert told == [(workspace, False)]


def test_a_temporary_folder_that_can_not_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"no workspace can be made in .*: No such file or directory; set TMPDIR\.$"):
        copy_workspace(tmp_path)


def test_a_link_that_leads_nowhere_is_copied_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "link").symlink_to("nowhere")
    workspace = copy_workspace(tmp_path / "source")
    try:
        assert (workspace.root / "link").readlink() == Path("nowhere")
    finally:
        remove_workspace(workspace)


def test_all_of_a_copy_is_of_one_date(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "src" / "f").write_text("x")
    os.utime(source, (1, 1))
    workspace = copy_workspace(source)
    try:
        dates = {path.stat().st_mtime for path in (workspace.root, *workspace.root.rglob("*"))}
    finally:
        remove_workspace(workspace)
    assert len(dates) == 1
    assert dates != {1.0}


def test_a_temporary_folder_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    workspace = copy_workspace(tmp_path / "source")
    try:
        assert workspace.name_of(workspace.resolve("new.txt")) == "new.txt"
    finally:
        remove_workspace(workspace)


def test_opening_leaves_no_file_open(workspace: Workspace) -> None:
    def is_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = is_open()
    for _ in range(5):
        with workspace.open_beneath(workspace.resolve("src/one.py"), os.O_RDONLY):
            pass
    assert is_open() == before


def test_a_copy_that_stays_is_one_line(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_args, **_options: None)
        with pytest.raises(RunError, match="can't be deleted; delete it by hand"):
            remove_workspace(workspace)
