from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.podman.delete_tree import delete_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    root.mkdir()
    return root


@pytest.fixture
def podman(tmp_path: Path) -> Path:
    """Stands for ``podman``: notes its arguments and removes as rm would."""
    script = tmp_path / "podman"
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\nshift 5\nchmod -R u+rwx -- "$@"; exec rm -rf -- "$@"\n'
    )
    script.chmod(0o755)
    return script


async def test_a_tree_is_removed_and_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = root / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "link").symlink_to(outside)
    await delete_tree(tree, roots=[root], podman="/nonexistent")
    assert not tree.exists()
    assert (outside / "kept").exists()


async def test_a_link_is_removed_and_not_its_target(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link = root / "link"
    link.symlink_to(target)
    await delete_tree(link, roots=[root], podman="/nonexistent")
    assert not link.is_symlink()
    assert target.is_dir()


async def test_what_is_not_there_is_fine(root: Path) -> None:
    await delete_tree(root / "missing", roots=[root], podman="/nonexistent")


@pytest.mark.parametrize("path", [".", "..", "../outside", "tree/../../outside", "link/inner"])
async def test_nothing_outside_of_the_roots(root: Path, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (root / "tree").mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(StorageError, match="not in a directory"):
        await delete_tree(Path(f"{root}/{path}"), roots=[root], podman="/nonexistent")
    assert (outside / "inner").is_dir()
    assert root.is_dir()


async def test_without_a_root_nothing_is_removed(root: Path) -> None:
    with pytest.raises(StorageError):
        await delete_tree(root, roots=[])


async def test_what_cannot_be_entered_is_removed_in_the_user_namespace(
    root: Path, podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = root / "-rf tree; with 'odd' $(name)"
    tree.mkdir()
    monkeypatch.setattr(
        "orchestrator.podman.delete_tree.shutil.rmtree", lambda *_, **__: None
    )  # as for a foreign owner
    await delete_tree(tree, roots=[root], podman=str(podman))
    assert not tree.exists()
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv == ["unshare", "rm", "-rf", "--one-file-system", "--", str(tree)]


async def test_what_stays_is_reported(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = root / "tree"
    tree.mkdir()
    monkeypatch.setattr("orchestrator.podman.delete_tree.shutil.rmtree", lambda *_, **__: None)
    script = tmp_path / "podman"
    script.write_text("#!/bin/sh\necho 'rm: busy' >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(StorageError, match="rm: busy"):
        await delete_tree(tree, roots=[root], podman=str(script))
    with pytest.raises(StorageError, match="FileNotFoundError"):
        await delete_tree(tree, roots=[root], podman="/nonexistent")
