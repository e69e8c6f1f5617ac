"""What rootless Podman needs on this machine, checked one by one, each with the command that mends it."""

from orchestrator.doctor.examine import examine
from orchestrator.doctor.model import Finding, Status, WantedImage
from orchestrator.doctor.probe import Probe, SystemProbe
from orchestrator.doctor.runtime import working_runtime

__all__ = ["Finding", "Probe", "Status", "SystemProbe", "WantedImage", "examine", "working_runtime"]
