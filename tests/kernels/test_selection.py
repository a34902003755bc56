import os
import subprocess
import sys

import pytest
import torch

from kernels import selection
from kernels.errors import NoImplementationError
from kernels.selection import implementation, use
from tests.kernels.agreement import TRITON_INTERPRETED

CPU = torch.device("cpu")


@pytest.mark.skipif(TRITON_INTERPRETED, reason="another process's choice")
def test_the_device_decides_unless_someone_does():
    assert implementation("rms_norm", CPU, torch.float32).__name__ == "kernels.rms_norm.cpu"
    with use("reference"):
        assert implementation("rms_norm", CPU, torch.float32).__name__ == "kernels.rms_norm.reference"
    assert implementation("rms_norm", CPU, torch.float32).__name__ == "kernels.rms_norm.cpu"


def test_types_that_the_cpu_kernels_do_not_take_go_to_the_reference():
    with use("cpu"):
        assert implementation("rms_norm", CPU, torch.float16).__name__ == "kernels.rms_norm.reference"


def test_an_unknown_name_is_refused():
    with pytest.raises(NoImplementationError, match="fastest"), use("fastest"):
        pass


def test_cpu_kernels_refuse_tensors_elsewhere():
    with use("cpu"), pytest.raises(NoImplementationError, match="cuda"):
        implementation("rms_norm", torch.device("cuda"), torch.float32)


@pytest.mark.skipif(TRITON_INTERPRETED, reason="the interpreter does run on the CPU")
def test_triton_on_the_cpu_needs_the_interpreter():
    with use("triton"), pytest.raises(NoImplementationError, match="TRITON_INTERPRET"):
        implementation("rms_norm", CPU, torch.float32)


def test_without_triton_a_gpu_computes_with_the_reference(monkeypatch):
    monkeypatch.setattr(selection, "has_triton", lambda: False)
    monkeypatch.setattr(selection, "_forced", None)
    assert implementation("rms_norm", torch.device("cuda"), torch.float32).__name__ == "kernels.rms_norm.reference"
    with use("triton"), pytest.raises(NoImplementationError, match="package triton"):
        implementation("rms_norm", torch.device("cuda"), torch.float32)


def choice_of_a_process(name: str) -> subprocess.CompletedProcess[str]:
    code = "from kernels.selection import forced; import sys; print(forced()); assert 'triton' not in sys.modules"
    environment = {**os.environ, "LOCKGATE_KERNELS": name}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_environment_forces_a_choice_and_a_wrong_one_is_named():
    assert choice_of_a_process("reference").stdout.strip() == "reference"
    refused = choice_of_a_process("fastest")
    assert refused.returncode != 0
    assert "LOCKGATE_KERNELS: 'fastest'" in refused.stderr
