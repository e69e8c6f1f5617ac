"""The list of changes and the patch, case by case."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.contract.changes import FileChange
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.errors import InvalidRequestError, StorageError
from orchestrator.workspace.changes import tree_pair
from orchestrator.workspace.overlay import diff
from orchestrator.workspace.overlay.diff import LARGE_BYTES, is_whiteout
from tests.orchestrator.workspace.overlay import list_changes, unified_patch
from tests.orchestrator.workspace.trees import opaque, whiteout


@pytest.fixture
def mount(tmp_path: Path) -> WorkspaceMount:
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    return WorkspaceMount(mode="overlay", source=tmp_path / "lower", upper=tmp_path / "upper", work=tmp_path / "work")


def upper(mount: WorkspaceMount) -> Path:
    assert mount.upper is not None
    return mount.upper


def git(repo: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(repo.parent),
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(["git", *arguments], cwd=repo, env=environment, capture_output=True, check=False, input=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def listed(mount: WorkspaceMount) -> list[FileChange]:
    return await list_changes(mount)


async def patched(mount: WorkspaceMount) -> bytes:
    return await unified_patch(mount)


async def test_nothing_changed(mount: WorkspaceMount) -> None:
    (mount.source / "a").write_text("a\n")
    assert await listed(mount) == []
    assert await patched(mount) == b""


async def test_added_modified_and_deleted_with_their_counts(mount: WorkspaceMount) -> None:
    (mount.source / "gone.txt").write_text("1\n2\n")
    (mount.source / "mod.txt").write_text("".join(f"{i}\n" for i in range(30)))
    whiteout(upper(mount) / "gone.txt")
    (upper(mount) / "mod.txt").write_text("".join(f"{i}\n" for i in range(30) if i != 3) + "tail")
    (upper(mount) / "new.txt").write_text("hello\n")
    text = "100644"
    assert await listed(mount) == [
        FileChange(
            path="gone.txt",
            change="deleted",
            size=None,
            binary=False,
            insertions=0,
            deletions=2,
            old_size=4,
            old_mode=text,
        ),
        FileChange(
            path="mod.txt",
            change="modified",
            size=82,
            binary=False,
            insertions=1,
            deletions=1,
            old_size=80,
            mode=text,
            old_mode=text,
        ),
        FileChange(path="new.txt", change="added", size=6, binary=False, insertions=1, deletions=0, mode=text),
    ]
    patch = await patched(mount)
    assert b"@@ -1,7 +1,6 @@\n 0\n 1\n 2\n-3\n 4\n 5\n 6\n@@ -28,3 +27,4 @@\n" in patch
    assert b"+tail\n\\ No newline at end of file\n" in patch


async def test_the_patch_is_byte_for_byte_what_git_writes(mount: WorkspaceMount, tmp_path: Path) -> None:
    """On the same edits made in a real repository (line numbers as content, so that git adds no function names)."""
    repo = tmp_path / "repo"
    repo.mkdir()
    numbers = "".join(f"{i}\n" for i in range(40))
    old = {"del": "1\n2\n", "mod x": numbers, "tab\t": "1\n", "mode": "1\n", "both": "1\n2", "kind": "1\n"}
    new = {
        "mod x": numbers.replace("7\n", "", 1) + "40",
        "tab\t": "2\n",
        "empty": "",
        "caf\u00e9": "1\n",
        "mode": "1\n",
        "both": "1\n3",
    }
    for top in (mount.source, repo):
        for name, text in old.items():
            (top / name).write_text(text)
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    for name, text in new.items():
        for top in (upper(mount), repo):
            (top / name).write_text(text)
    whiteout(upper(mount) / "del")
    (repo / "del").unlink()
    (repo / "kind").unlink()
    for top in (upper(mount), repo):
        (top / "mode").chmod(0o755)
        (top / "both").chmod(0o755)
        (top / "kind").symlink_to("1")
    git(repo, "add", "-N", "empty", "caf\u00e9")
    assert await patched(mount) == git(repo, "diff", "--full-index", "-M")


async def test_a_copied_up_file_with_the_same_content_is_no_change(mount: WorkspaceMount) -> None:
    for side in (mount.source, upper(mount)):
        (side / "small").write_text("same\n")
        (side / "large").write_bytes(b"x" * (LARGE_BYTES + 10))
        (side / "link").symlink_to("small")
    (upper(mount) / "small").chmod(0o600)  # git knows of the executable bit alone
    assert await listed(mount) == []


async def test_the_executable_bit_alone_is_a_change(mount: WorkspaceMount) -> None:
    for side in (mount.source, upper(mount)):
        (side / "run.sh").write_text("#!/bin/sh\n")
    (upper(mount) / "run.sh").chmod(0o755)
    (change,) = await listed(mount)
    assert (change.change, change.insertions, change.deletions) == ("mode", 0, 0)
    assert (change.old_mode, change.mode) == ("100644", "100755")
    assert await patched(mount) == b"diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n"


@pytest.mark.parametrize("data", [b"\x89PNG\0\r\n", b"caf\xe9\n"])
async def test_binary_content_is_in_the_patch(mount: WorkspaceMount, tmp_path: Path, data: bytes) -> None:
    (mount.source / "x y").write_bytes(b"text\n")
    (upper(mount) / "x y").write_bytes(data)
    (change,) = await listed(mount)
    assert (change.binary, change.size, change.insertions) == (True, len(data), 0)
    patch = await patched(mount)
    assert b"\nGIT binary patch\nliteral %d\n" % len(data) in patch
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "x y").read_bytes() == data
    git(mount.source, "apply", "-R", "-", stdin=patch)
    assert (mount.source / "x y").read_bytes() == b"text\n"


async def test_a_nul_after_the_first_8000_bytes_does_not_make_a_file_binary(mount: WorkspaceMount) -> None:
    (upper(mount) / "f").write_bytes(b"x" * 8000 + b"\0\n")
    assert [c.binary for c in await listed(mount)] == [False]


async def test_a_large_file_is_compared_and_comes_as_binary(mount: WorkspaceMount) -> None:
    content = b"line\n" * (LARGE_BYTES // 5 + 1)
    (mount.source / "large").write_bytes(content)
    (upper(mount) / "large").write_bytes(content[:-2] + b"E\n")
    (upper(mount) / "new").write_bytes(content)
    first, second = await listed(mount)
    assert (first.path, first.change, first.binary, first.size) == ("large", "modified", True, len(content))
    assert (second.path, second.change, second.binary) == ("new", "added", True)
    patch = await patched(mount)
    assert b"\n+line" not in patch
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "large").read_bytes() == content[:-2] + b"E\n"
    assert (mount.source / "new").read_bytes() == content


async def test_a_file_too_large_for_a_patch_has_a_marker_there(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workspace.changes.patch.PATCH_FILE_BYTES", 1000)
    (upper(mount) / "new").write_bytes(b"\0" * 2000)
    assert await patched(mount) == (
        b"diff --git a/new b/new\nnew file mode 100644\nBinary files /dev/null and b/new differ\n"
    )


async def test_git_directories_and_files_are_left_out(mount: WorkspaceMount) -> None:
    (upper(mount) / ".git" / "hooks").mkdir(parents=True)
    (upper(mount) / ".git" / "hooks" / "post-checkout").write_text("evil\n")
    (upper(mount) / "sub").mkdir()
    (upper(mount) / "sub" / ".git").write_text("gitdir: elsewhere\n")
    (upper(mount) / ".gitignore").write_text("*.o\n")
    (mount.source / "old").mkdir()
    (mount.source / "old" / ".git").mkdir()
    (mount.source / "old" / ".git" / "config").write_text("x\n")
    whiteout(upper(mount) / "old")
    assert [c.path for c in await listed(mount)] == [".gitignore"]
    assert b"hooks" not in await patched(mount)


async def test_a_deleted_directory_lists_its_files(mount: WorkspaceMount) -> None:
    (mount.source / "d" / "e").mkdir(parents=True)
    (mount.source / "d" / "e" / "f").write_text("1\n")
    (mount.source / "d" / "g").symlink_to("e")
    whiteout(upper(mount) / "d")
    whiteout(upper(mount) / "never-was")
    assert [(c.path, c.change) for c in await listed(mount)] == [("d/e/f", "deleted"), ("d/g", "deleted")]


async def test_an_opaque_directory_hides_what_was_in_the_repo(mount: WorkspaceMount) -> None:
    for name in ("same", "gone", "new-content"):
        (mount.source / "d").mkdir(exist_ok=True)
        (mount.source / "d" / name).write_text(f"{name}\n")
    (upper(mount) / "d").mkdir()
    (upper(mount) / "d" / "same").write_text("same\n")
    (upper(mount) / "d" / "new-content").write_text("other\n")
    opaque(upper(mount) / "d", b"x")
    assert [(c.path, c.change) for c in await listed(mount)] == [("d/new-content", "modified")]
    opaque(upper(mount) / "d", b"y")
    assert [(c.path, c.change) for c in await listed(mount)] == [("d/gone", "deleted"), ("d/new-content", "modified")]


async def test_a_directory_inside_an_opaque_one_hides_the_repo_too(mount: WorkspaceMount) -> None:
    (mount.source / "d" / "e").mkdir(parents=True)
    (mount.source / "d" / "e" / "gone").write_text("1\n")
    (mount.source / "d" / "e" / "same").write_text("1\n")
    (upper(mount) / "d" / "e").mkdir(parents=True)
    (upper(mount) / "d" / "e" / "same").write_text("1\n")
    opaque(upper(mount) / "d")
    assert [(c.path, c.change) for c in await listed(mount)] == [("d/e/gone", "deleted")]


async def test_a_link_in_the_upper_is_never_followed(mount: WorkspaceMount, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("top secret\n")
    (upper(mount) / "dir").symlink_to(secret)
    (upper(mount) / "file").symlink_to(secret / "key")
    (mount.source / "dir").mkdir()
    (mount.source / "dir" / "key").write_text("x\n")
    patch = await patched(mount)
    assert b"top secret" not in patch
    assert [(c.path, c.change) for c in await listed(mount)] == [
        ("dir", "added"),
        ("dir/key", "deleted"),
        ("file", "added"),
    ]
    assert b"new file mode 120000" in patch


async def test_a_file_that_becomes_a_link_is_deleted_and_added(mount: WorkspaceMount) -> None:
    (mount.source / "f").write_text("old\n")
    (upper(mount) / "f").symlink_to("old\n")
    (change,) = await listed(mount)
    assert (change.change, change.insertions, change.deletions) == ("modified", 1, 1)
    patch = await patched(mount)
    assert patch.index(b"deleted file mode 100644") < patch.index(b"new file mode 120000")


async def test_pipes_and_sockets_are_listed_and_not_in_the_patch(mount: WorkspaceMount) -> None:
    os.mkfifo(upper(mount) / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(upper(mount) / "sock"))
        assert [(c.path, c.binary, c.size) for c in await listed(mount)] == [("pipe", True, None), ("sock", True, None)]
    assert await patched(mount) == b""


async def test_a_directory_that_is_too_deep_is_reported_as_a_whole(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "MAX_DEPTH", 2)
    deep = upper(mount) / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "f").write_text("x\n")
    (upper(mount) / "a" / "g").write_text("x\n")
    assert [(c.path, c.change, c.binary) for c in await listed(mount)] == [
        ("a/b/c", "added", True),
        ("a/g", "added", False),
    ]
    assert b"Binary files /dev/null and b/a/b/c differ\n" in await patched(mount)


async def test_a_patch_that_grows_too_large_leaves_content_out_and_says_so(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workspace.changes.patch.MAX_PATCH_BYTES", 1000)
    (upper(mount) / "a").write_text("a\n" * 200)
    (upper(mount) / "b").write_text("b\n" * 300)
    patch = await patched(mount)
    assert b"\n+a\n" in patch
    assert b"\n+b\n" not in patch
    assert patch.endswith(b"Binary files /dev/null and b/b differ\n")


async def test_names_are_quoted_as_git_does(mount: WorkspaceMount) -> None:
    name = b'\xff "q"\\\n\x01'
    (upper(mount) / os.fsdecode(name)).write_text("x\n")
    (change,) = await listed(mount)
    assert change.path == name.decode("utf-8", "surrogateescape")
    assert b'+++ "b/\\377 \\"q\\"\\\\\\n\\001"\t\n' in await patched(mount)


async def test_a_readonly_workspace_has_no_changes(tmp_path: Path) -> None:
    readonly = WorkspaceMount(mode="readonly", source=tmp_path)
    assert await list_changes(readonly) == []
    assert await unified_patch(readonly) == b""


async def test_a_direct_workspace_refers_to_git(tmp_path: Path) -> None:
    direct = WorkspaceMount(mode="direct", source=tmp_path)
    with pytest.raises(InvalidRequestError, match=r"use git there"):
        await list_changes(direct)
    with pytest.raises(InvalidRequestError):
        await unified_patch(direct)


async def test_a_repo_that_has_gone_is_a_storage_error(mount: WorkspaceMount) -> None:
    mount.source.rmdir()
    with pytest.raises(StorageError, match=r"cannot be compared"):
        await listed(mount)


def test_a_whiteout_is_a_character_device_0_0() -> None:
    device = Path("/dev/null").stat()
    assert not is_whiteout(device)
    assert is_whiteout(os.stat_result([*device], {"st_rdev": 0}))


@pytest.mark.parametrize("size", [0, 1, 25, 26, 27, 51, 52, 53, 104, 5000])
async def test_binary_content_of_any_size_applies_in_both_directions(mount: WorkspaceMount, size: int) -> None:
    before, after = b"\0" + random.Random(1).randbytes(40), b"\0" + random.Random(size).randbytes(size)
    (mount.source / "f").write_bytes(before)
    (upper(mount) / "f").write_bytes(after)
    patch = await patched(mount)
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "f").read_bytes() == after
    git(mount.source, "apply", "-R", "-", stdin=patch)
    assert (mount.source / "f").read_bytes() == before


async def test_one_changed_line_in_a_long_file_is_one_hunk(mount: WorkspaceMount) -> None:
    old = [b"%d\n" % i for i in range(50_000)]
    (mount.source / "f").write_bytes(b"".join(old))
    (upper(mount) / "f").write_bytes(b"".join([*old[:25_000], b"new\n", *old[25_001:]]))
    patch = await patched(mount)
    assert patch.count(b"\n@@ ") == 1
    assert b"\n@@ -24998,7 +24998,7 @@" in patch
    assert [(c.insertions, c.deletions) for c in await listed(mount)] == [(1, 1)]


async def test_a_moved_function_keeps_the_rest_in_place(mount: WorkspaceMount) -> None:
    (mount.source / "f").write_bytes(b"def a():\n    pass\n\ndef b():\n    pass\n\ndef c():\n    pass\n")
    (upper(mount) / "f").write_bytes(b"def b():\n    pass\n\ndef c():\n    pass\n\ndef a():\n    pass\n")
    (change,) = await listed(mount)
    assert change.insertions + change.deletions == 6


async def test_lines_end_at_newlines_alone(mount: WorkspaceMount) -> None:
    (upper(mount) / "f").write_bytes(b"a\r\nb\x0cc\rd\n\ne")
    assert [c.insertions for c in await listed(mount)] == [4]
    assert b"\n+a\r\n+b\x0cc\rd\n+\n+e\n\\ No newline at end of file\n" in await patched(mount)


async def test_what_git_cannot_compare_in_time_comes_as_binary_and_the_rest_as_text(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines with no anchor and no common part worth finding keep git busy for half a minute."""
    monkeypatch.setattr(tree_pair, "DIFF_SECONDS", 0.5)
    choice = random.Random(1)
    old, new = (b"".join(choice.choices([b"a\n", b"b\n"], k=LARGE_BYTES // 2)) for _ in range(2))
    (mount.source / "hostile").write_bytes(old)
    (upper(mount) / "hostile").write_bytes(new)
    (mount.source / "plain").write_bytes(b"1\n")
    (upper(mount) / "plain").write_bytes(b"2\n")
    began = time.monotonic()
    assert [(c.path, c.binary, c.insertions) for c in await listed(mount)] == [
        ("hostile", True, 0),
        ("plain", False, 1),
    ]
    patch = await patched(mount)
    assert time.monotonic() - began < 20
    assert b"\n-1\n+2\n" in patch
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "hostile").read_bytes() == new


async def test_content_for_which_there_is_no_room_is_left_out_and_says_so(
    mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_pair, "CONTENT_BYTES", 10)
    (mount.source / "a").write_bytes(b"1234\n")
    (upper(mount) / "a").write_bytes(b"5678\n")
    (mount.source / "b").write_bytes(b"1\n")
    (upper(mount) / "b").write_bytes(b"2\n")
    assert [(c.path, c.binary) for c in await listed(mount)] == [("a", False), ("b", True)]
    patch = await patched(mount)
    assert b"\n+5678\n" in patch
    assert patch.endswith(b"diff --git a/b b/b\nBinary files a/b and b/b differ\n")


async def test_nothing_of_the_agents_changes_how_git_compares(
    mount: WorkspaceMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    config = f'[diff]\n\texternal = {evil}\n\tnoprefix = true\n[diff "x"]\n\ttextconv = {evil}\n\tcommand = {evil}\n'
    for directory in (mount.source, upper(mount)):
        (directory / ".git").mkdir()
        (directory / ".git" / "config").write_text(config)
        (directory / ".gitattributes").write_text("* -diff diff=x\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(evil))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    (mount.source / "f").write_bytes(b"1\n2\n")
    (upper(mount) / "f").write_bytes(b"1\n3\n")
    assert b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n" in await patched(mount)
    assert not (tmp_path / "ran").exists()


async def test_a_symlink_in_the_place_of_binary_content_can_be_read(mount: WorkspaceMount) -> None:
    (mount.source / "f").write_bytes(b"\0\1")
    (upper(mount) / "f").symlink_to("target")
    (change,) = await listed(mount)
    assert (change.binary, change.insertions, change.deletions) == (True, 1, 0)
    patch = await patched(mount)
    assert patch.index(b"deleted file mode 100644") < patch.index(b"new file mode 120000")
    assert b"\n+target\n" in patch
    git(mount.source, "apply", "-", stdin=patch)
    assert (mount.source / "f").is_symlink()


async def test_two_contents_with_one_name_are_refused(mount: WorkspaceMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can make SHA-1 collide could else show one content and have another applied."""
    same = hashlib.sha1(b"", usedforsecurity=False)
    monkeypatch.setattr("orchestrator.workspace.changes.tree_pair.hashlib.sha1", lambda data, **_: same)
    (mount.source / "f").write_bytes(b"1\n")
    (upper(mount) / "f").write_bytes(b"2\n")
    with pytest.raises(StorageError, match="same SHA-1"):
        await patched(mount)
