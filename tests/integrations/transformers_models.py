"""Small models of transformers with random weights, wide enough apart that attention decides what they say."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

VOCABULARY, LENGTH, PADDED, WINDOW = 61, 23, 9, 6
SIZES = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 48}
DECODER = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    **SIZES,
}
ENCODER_DECODER = {"vocab_size": VOCABULARY, "d_model": 48, "pad_token_id": 0, "decoder_start_token_id": 2}
DECODERS = ("llama", "gemma2", "gpt_oss")
ENCODER_DECODERS = ("bart", "t5")


def tiny(kind: str) -> Any:
    """A model of a kind, the same each time: three query heads share a key head where heads are grouped."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    return _made(kind, transformers).eval()


def _made(kind: str, hf: Any) -> Any:
    match kind:
        case "llama":
            return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER, attention_dropout=0.3))
        case "gpt2":  # looks at the mask that it is given, and has a scale of its own in each layer
            sizes = {
                "n_embd": 48,
                "n_head": 6,
                "n_layer": 2,
                "n_positions": 96,
                "scale_attn_by_inverse_layer_idx": True,
            }
            return hf.GPT2LMHeadModel(hf.GPT2Config(**DECODER, **sizes))
        case "gemma2":  # a small cap, and every second layer with a window
            local = {"sliding_window": WINDOW, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 8}
            return hf.Gemma2ForCausalLM(hf.Gemma2Config(**DECODER, **local))
        case "gpt_oss":  # sinks, and every second layer with a window
            experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
            return hf.GptOssForCausalLM(hf.GptOssConfig(**DECODER, **experts, sliding_window=WINDOW))
        case "llama4":  # chunks
            few = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 32}
            return hf.Llama4ForCausalLM(hf.Llama4TextConfig(**DECODER, **few, attention_chunk_size=WINDOW))
        case "bert":
            sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 32}
            return hf.BertModel(hf.BertConfig(vocab_size=VOCABULARY, initializer_range=0.2, **sizes))
        case "bart":
            each = {"layers": 2, "attention_heads": 6, "ffn_dim": 32}
            sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in each.items()}
            ends = {"eos_token_id": None, "bos_token_id": 1, "forced_eos_token_id": None}
            return hf.BartForConditionalGeneration(hf.BartConfig(**ENCODER_DECODER, **sides, **ends, init_std=0.2))
        case "t5":
            sizes = {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 6, "eos_token_id": None}
            return hf.T5ForConditionalGeneration(hf.T5Config(**ENCODER_DECODER, **sizes))
    raise ValueError(f"no model of kind {kind!r}")


@functools.cache
def tokens() -> Tensor:
    """Two sequences."""
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Tokens, the first sequence shorter by some that are padding, and which are none."""
    ids, kept = tokens().clone(), torch.ones(2, LENGTH, dtype=torch.long)
    kept[0, slice(None, PADDED) if side == "left" else slice(LENGTH - PADDED, None)] = 0
    return ids * kept, kept


def by_both(model: Any, run: Any) -> tuple[Any, Any]:
    """What ``run(model)`` gives with transformers' eager attention and with ours, from the same random state."""
    results = []
    for name in ("eager", "torch_flexattn"):
        model.set_attn_implementation(name)
        torch.manual_seed(2)
        results.append(run(model))
    return results[0], results[1]
