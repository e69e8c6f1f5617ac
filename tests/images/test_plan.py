"""Which images are made, from what, and by which commands."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.catalogue import load_catalogue
from images.plan import (
    Artifact,
    artifacts,
    build_argv,
    import_argv,
    package_list,
    prime_argv,
    recipe_hash,
    rootfs_argv,
    select,
    to_build,
)
from orchestrator.errors import InvalidRequestError, UnknownBackendError

CATALOGUE = load_catalogue()
CERT = b"-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n"
WORK = Path("/state/images/w")
FILES = {"Containerfile": b"FROM x\n", "package.json": b"{}", "sub/extra": b"\x00\x01"}


def plan(base: str = "auto", ca: bytes = b"") -> dict[str, Artifact]:
    return artifacts(CATALOGUE, base=base, ca=ca)


def names(built: list[Artifact]) -> list[str]:
    return [artifact.name for artifact in built]


def test_auto_is_debian() -> None:
    assert plan("auto") == plan("debian")


def test_the_tag_has_the_cli_version_and_the_recipe_hash() -> None:
    image = plan()["claude-code"]
    assert image.tag == f"localhost/podmentor/claude-code:2.1.197-{image.recipe[:12]}"
    assert image.labels["podmentor.image"] == "claude-code"
    assert image.labels["podmentor.cli_version"] == "2.1.197"
    assert image.labels["podmentor.recipe"] == image.recipe


def test_a_certificate_changes_all_but_the_root_file_system() -> None:
    without, with_ca = plan(), plan(ca=CERT)
    changed = [name for name in without if without[name].recipe != with_ca[name].recipe]
    assert changed == ["base", "builder", *select(load_catalogue(), [])]
    assert with_ca["base"].files["ca-extra.pem"] == CERT


def test_another_base_changes_everything_above_it() -> None:
    trixie, slim = plan("docker.io/library/debian:trixie"), plan("debian:trixie-slim")
    assert "rootfs" not in trixie
    recipes = [{artifact.recipe for artifact in made.values()} for made in (plan(), trixie, slim)]
    assert not recipes[0] & recipes[1]
    assert not recipes[1] & recipes[2]


def test_a_registry_base_is_pulled_and_the_rest_never() -> None:
    made = plan("debian:trixie-slim")
    base = build_argv(made["base"], WORK / "context", no_cache=False)
    assert "--build-arg=BASE=debian:trixie-slim" in base
    assert "--pull=missing" in base
    assert "--pull=always" in build_argv(made["base"], WORK / "context", no_cache=True)
    for name in ("builder", "claude-code"):
        assert "--pull=never" in build_argv(made[name], WORK / "context", no_cache=True)


@pytest.mark.parametrize("base", ["", "--help", "a b", "x;y", "-v", "x\ny"])
def test_a_base_that_is_no_reference_is_refused(base: str) -> None:
    with pytest.raises(InvalidRequestError, match="--base must be"):
        plan(base)


def test_a_cold_build_makes_every_part_in_order() -> None:
    made = plan()
    assert names(to_build(made, ["claude-code"], present=set(), no_cache=False)) == [
        "rootfs",
        "base",
        "builder",
        "claude-code",
    ]


def test_an_image_that_is_there_needs_no_parts() -> None:
    made = plan()
    assert to_build(made, ["claude-code"], present={made["claude-code"].tag}, no_cache=False) == []


def test_only_what_is_missing_is_made() -> None:
    made = plan()
    present = {made["base"].tag}
    assert names(to_build(made, ["claude-code"], present=present, no_cache=False)) == ["builder", "claude-code"]


def test_no_cache_makes_everything_once() -> None:
    made = plan()
    present = {artifact.tag for artifact in made.values()}
    assert names(to_build(made, ["claude-code"], present=present, no_cache=True)) == [
        "rootfs",
        "base",
        "builder",
        "claude-code",
    ]


def test_the_build_command() -> None:
    image = plan()["claude-code"]
    base, builder = plan()["base"].tag, plan()["builder"].tag
    assert build_argv(image, WORK / "context", no_cache=False) == [
        "env",
        "TMPDIR=/state/images/w",
        "podman",
        "build",
        "--isolation=chroot",
        "--network=host",
        "--layers=false",
        "--force-rm",
        "--pull=never",
        f"--build-arg=BASE={base}",
        f"--build-arg=BUILDER={builder}",
        "--label=podmentor.image=claude-code",
        "--label=podmentor.cli_version=2.1.197",
        f"--label=podmentor.recipe={image.recipe}",
        f"--label=podmentor.parent={base}",
        f"--tag={image.tag}",
        "--file=/state/images/w/context/Containerfile",
        "/state/images/w/context",
    ]


def test_the_root_file_system_is_made_without_root() -> None:
    rootfs = plan()["rootfs"]
    argv = rootfs_argv(rootfs, WORK / "rootfs.tar")
    assert argv[:4] == ["env", "TMPDIR=/var/tmp", "mmdebstrap", "--mode=unshare"]
    include = next(word for word in argv if word.startswith("--include="))
    assert {"ca-certificates", "git", "ripgrep", "socat", "nodejs"} <= set(include.partition("=")[2].split(","))
    assert argv[argv.index("trixie") + 1] == "/state/images/w/rootfs.tar"
    assert any(word.endswith("trixie-security main") for word in argv)


def test_the_import_command_labels_the_root_file_system() -> None:
    rootfs = plan()["rootfs"]
    assert import_argv(rootfs, WORK / "rootfs.tar") == [
        "env",
        "TMPDIR=/state/images/w",
        "podman",
        "import",
        "--quiet",
        "--change=LABEL podmentor.image=rootfs",
        f"--change=LABEL podmentor.recipe={rootfs.recipe}",
        "/state/images/w/rootfs.tar",
        rootfs.tag,
    ]


def test_the_first_start_has_the_mapping_of_the_runs() -> None:
    argv = prime_argv("localhost/podmentor/x:1", "runc")
    assert argv[:3] == ["podman", "--runtime=runc", "run"]
    assert {"--userns=keep-id:uid=1000,gid=1000", "--network=none", "--read-only", "--pull=never"} <= set(argv)
    assert argv[-2:] == ["localhost/podmentor/x:1", "true"]
    assert prime_argv("x", None)[:2] == ["podman", "run"]


def test_packages_are_read_without_comments() -> None:
    assert package_list(b"# all\ngit  socat # relay\n\ngit\n") == ("git", "socat")


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    assert select(CATALOGUE, []) == sorted(CATALOGUE.backends)
    with pytest.raises(UnknownBackendError, match="claude-code"):
        select(CATALOGUE, ["claude-cod"])


# --- the recipe hash changes with every input and with nothing else ---


def test_order_of_files_does_not_matter() -> None:
    backwards = dict(reversed(FILES.items()))
    assert list(backwards) != list(FILES)
    assert recipe_hash(FILES, "a") == recipe_hash(backwards, "a")


@pytest.mark.parametrize("name", FILES)
def test_every_byte_of_every_file_matters(name: str) -> None:
    hashes = {recipe_hash(FILES)}
    for index in range(len(FILES[name])):
        changed = bytearray(FILES[name])
        changed[index] ^= 1
        hashes.add(recipe_hash({**FILES, name: bytes(changed)}))
    assert len(hashes) == len(FILES[name]) + 1


def test_names_and_further_inputs_matter() -> None:
    renamed = {**FILES, "sub/other": FILES["sub/extra"]}
    del renamed["sub/extra"]
    assert len({recipe_hash(FILES), recipe_hash(renamed), recipe_hash(FILES, "x"), recipe_hash(FILES, "x", "")}) == 4


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.binary(max_size=6), max_size=3),
    st.dictionaries(st.text(min_size=1, max_size=4), st.binary(max_size=6), max_size=3),
    st.lists(st.text(max_size=4), max_size=3),
    st.lists(st.text(max_size=4), max_size=3),
)
def test_different_recipes_have_different_hashes(
    files: dict[str, bytes], other: dict[str, bytes], inputs: list[str], others: list[str]
) -> None:
    same = (files, inputs) == (other, others)
    assert (recipe_hash(files, *inputs) == recipe_hash(other, *others)) is same
