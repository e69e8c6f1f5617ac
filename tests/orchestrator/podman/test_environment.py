from orchestrator.podman.environment import UNSET, podman_environment


def test_no_key_is_in_podman_s_environment() -> None:
    environ = {
        "HOME": "/h",
        "PATH": "/bin",
        "XDG_RUNTIME_DIR": "/r",
        "ANTHROPIC_API_KEY": "sk",
        "STORAGE_DRIVER": "vfs",
    }
    assert podman_environment(environ) == {
        "HOME": "/h",
        "PATH": "/bin",
        "XDG_RUNTIME_DIR": "/r",
        "STORAGE_DRIVER": "vfs",
    }


def test_what_is_about_this_process_is_not_passed_on() -> None:
    assert podman_environment(dict.fromkeys(UNSET, "x")) == {}
