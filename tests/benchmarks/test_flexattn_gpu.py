"""What only a GPU can show of the benchmark of torch-flexattn."""

import pytest
import torch

from benchmarks.torch_flexattn import gpu_tasks, oracle_gpu
from benchmarks.torch_flexattn.attention_gpu import ours
from benchmarks.torch_flexattn.first_call import in_new_process
from benchmarks.torch_flexattn.gpu_peers import backward, peers_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def test_a_second_process_finds_the_kernels_of_the_first(tmp_path):
    cold, warm = (in_new_process("ours", tmp_path) for _ in range(2))
    assert 0 < warm < cold


@pytest.mark.parametrize("name", ["ours", "torch-flex", "cudnn-sdpa"])
def test_a_backward_pass_can_be_repeated_and_is_right(name, monkeypatch):
    from benchmarks.check import bound_share

    monkeypatch.setattr(gpu_tasks, "LENGTH", 512)
    task = gpu_tasks.make_task("causal", "", 64, torch.device("cuda", 0), backward=True)
    runners = {"ours": backward(ours), **peers_of("causal", "", with_backward=True)}
    run = runners[name](task)
    run()
    assert 0 < bound_share(oracle_gpu.compared(task, run()), oracle_gpu.reference(task), oracle_gpu.bound(task)) < 1
