"""Models of Hugging Face transformers on torch-flexattn, with no edit to their code: what they say, next to eager.

pip install ./packages/torch-flexattn ./integrations/transformers
python examples/flexattn_hf_swap.py
python examples/flexattn_hf_swap.py --model path/or/name --prompt "The mask of"    # weights of your own

Without --model three small models with random weights are made: a Llama whose key heads serve three query heads each,
a Gemma 2 with a soft cap and a window in every second layer, a GPT-OSS with sinks and windows. Of each, the same batch
(one sequence is padded on the left) goes through eager attention and through torch-flexattn. Printed: the largest
difference of logits, next to the largest logit; of gradients of a training step, likewise; and whether `generate` gives
the same tokens with a cache that grows and with a static one. Ends with an error where something differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

IMPLEMENTATIONS = ("eager", "torch_flexattn")
SIZES = {
    "vocab_size": 211,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": None,
}


@dataclass
class Row:
    """One model: relative differences, and whether tokens are equal, by the kind of cache."""

    model: str
    logits: float
    gradients: float
    tokens: dict[str, bool]

    def worst(self) -> float:
        return max(self.logits, self.gradients)


def small_models() -> dict[str, Callable[[], Any]]:
    """What is compared without --model."""
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        GptOssConfig,
        GptOssForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
    )

    gemma = {"sliding_window": 16, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
    gpt_oss = {"sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    return {
        "Llama, 3 heads a key head": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "Gemma 2, soft cap, windows": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **gemma)),
        "GPT-OSS, sinks, windows": lambda: GptOssForCausalLM(GptOssConfig(**SIZES, **gpt_oss)),
    }


def random_batch(length: int) -> tuple[Tensor, Tensor]:
    """Two sequences of tokens, one a third shorter and padded on the left; and which are no padding."""
    tokens, kept = torch.randint(3, SIZES["vocab_size"], (2, length)), torch.ones(2, length, dtype=torch.long)
    kept[0, : length // 3] = 0
    return tokens * kept, kept


def observed(model: Any, tokens: Tensor, kept: Tensor, steps: int, caches: tuple[str, ...]) -> dict[str, Any]:
    """Logits where there is no padding, gradients of a training step, and generated tokens by cache."""
    seen = kept.bool()
    first = (seen.cumsum(1) == 1) & seen
    labels = torch.where(seen & ~first, tokens, -100)  # the first is told by padding, which sees nothing
    out = model(tokens, attention_mask=kept, labels=labels)
    out.loss.backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    with torch.no_grad():
        made = {
            cache: model.generate(
                tokens,
                attention_mask=kept,
                max_new_tokens=steps,
                do_sample=False,
                cache_implementation=None if cache == "dynamic" else cache,
            )
            for cache in caches
        }
    return {"logits": out.logits[seen].detach(), "gradients": grads, "tokens": made}


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference next to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


def compare(name: str, model: Any, tokens: Tensor, kept: Tensor, steps: int) -> Row:
    """One model with both implementations."""
    caches = ("dynamic", "static")
    results = {}
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        results[implementation] = observed(model, tokens, kept, steps, caches)
    eager, ours = (results[implementation] for implementation in IMPLEMENTATIONS)
    return Row(
        name,
        relative(ours["logits"], eager["logits"]),
        relative(ours["gradients"], eager["gradients"]),
        {cache: torch.equal(ours["tokens"][cache], eager["tokens"][cache]) for cache in caches},
    )


def main(arguments: list[str] | None = None) -> int:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--model", help="folder or name of a causal language model, instead of the small ones")
    line.add_argument("--prompt", default="Attention is computed where the mask", help="for --model")
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--length", type=int, default=90, help="tokens of a random prompt (default: %(default)s)")
    line.add_argument("--steps", type=int, default=20, help="tokens to generate (default: %(default)s)")
    line.add_argument("--tolerance", type=float, default=1e-5)
    line.add_argument("--seed", type=int, default=0)
    options = line.parse_args(arguments)
    for name in ("length", "steps"):
        if getattr(options, name) < 3:
            line.error(f"--{name} must be at least 3, got {getattr(options, name)}")
    try:
        import torch_flexattn_transformers  # noqa: F401  registers the implementation
        import transformers
    except ModuleNotFoundError as error:
        line.error(f"{error.name} is missing: pip install ./packages/torch-flexattn ./integrations/transformers")
    transformers.utils.logging.set_verbosity_error()

    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    rows = []
    print(f"{'model':30}{'logits':>10}{'gradients':>12}   tokens: dynamic, static cache")
    if options.model:
        spell = transformers.AutoTokenizer.from_pretrained(options.model)
        inputs = spell(options.prompt, return_tensors="pt").to(device)
        made = {options.model: lambda: transformers.AutoModelForCausalLM.from_pretrained(options.model)}
        batch = inputs["input_ids"], inputs["attention_mask"]
    else:
        made, batch = small_models(), tuple(t.to(device) for t in random_batch(options.length))
    for name, make in made.items():
        row = compare(name, make().to(device).eval(), *batch, options.steps)
        equal = ", ".join("equal" if same else "DIFFER" for same in row.tokens.values())
        print(f"{row.model:30}{row.logits:10.1e}{row.gradients:12.1e}   {equal}", flush=True)
        rows.append(row)
    if any(row.worst() > options.tolerance or not all(row.tokens.values()) for row in rows):
        print(f"a difference is above --tolerance {options.tolerance:.1e}, or tokens differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
