"""The limits on a machine that delegates cgroups: QEMU guests with systemd, cgroup v2 and rootless Podman."""
