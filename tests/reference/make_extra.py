#!/usr/bin/env python3
"""Makes tests/reference/data/models/NAME: small random models of what ../shared/reference/models leaves out (yarn and dynamic RoPE
scaling, Qwen3, Gemma 3, windows in some layers only, ...), and what transformers computes for them in float32 on a CPU.

usage: make_extra.py [NAME ...]      Python packages: torch 2.9.1, transformers 5.24.0, safetensors 0.8.0

The format is that of ../shared/reference/README.md: config.json and config.alt.json say the same in the old form (rope_theta,
rope_scaling) and in the one that transformers 5 writes; expected.json holds 48 greedy ids and the logits of ten positions. The same
bytes come out with the same versions. Weights are drawn so that attention is sharp (scores spread by 2.6), the output depends on the
whole prompt and the best two logits are never closer than MARGIN; seeds that do not give that are passed over.

RoPE of type dynamic: transformers grows the base with the length of the pass, so that a cache and whole passes disagree. Dewpoint
grows it with the context of the run. Both are the same when every pass is as long as the context: the passes here are padded to
prompt + 48 ids (attention is causal, so the padding changes nothing but the base).
"""
import copy, json, pathlib, sys, warnings
import torch, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

OUT = pathlib.Path(__file__).parent / "data" / "models"
STEPS, MARGIN, DISTINCT, SCORE_STD = 48, 0.01, 24, 2.6
torch.set_num_threads(1)
torch.set_grad_enabled(False)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning)

LLAMA = {"vocab_size": 320, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1,
         "intermediate_size": 80, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
         "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
QWEN = {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "use_sliding_window": False,
        "sliding_window": None}

# type, stored: one type for all matrices, or "mixed"; style: which of the two forms is config.json.
MODELS = {
    "llama-yarn": dict(
        family="llama", seed=3000, prompt=180, stored="bfloat16", style="old",
        notes="yarn from 64 to 256 positions; of the 8 pairs two keep their frequency, one is between, five are interpolated",
        config={**LLAMA, "rope_theta": 1000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0,
                "beta_slow": 1.0, "original_max_position_embeddings": 64}}),
    "qwen2-yarn": dict(
        family="qwen2", seed=3100, prompt=190, stored="bfloat16", style="new",
        notes="yarn with the older key 'type', an attention_factor of its own and bounds that are not rounded",
        config={**QWEN, "rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 2.5, "attention_factor": 1.3,
                "beta_fast": 2.5, "beta_slow": 0.7, "truncate": False, "original_max_position_embeddings": 100}}),
    "llama-dynamic": dict(
        family="llama", seed=3200, prompt=200, stored="bfloat16", style="old",
        notes="dynamic NTK scaling, max_position_embeddings 128: base of a run with 248 positions",
        config={**LLAMA, "max_position_embeddings": 128, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "qwen3": dict(
        family="qwen3", seed=3300, prompt=170, stored="bfloat16", style="new",
        notes="norms of the heads of q and k; head_dim 24 given, hidden / heads is 12; tied head",
        config={**QWEN, "head_dim": 24, "rope_theta": 1000000.0, "attention_bias": False, "tie_word_embeddings": True,
                "max_window_layers": 3}),
    "gemma3": dict(
        family="gemma3_text", seed=3400, prompt=160, stored="bfloat16", style="old",
        notes="every third layer sees all, the others 32 positions and have a RoPE of their own; linear scaling of the former; "
              "query_pre_attn_scalar is not head_dim; norms store their gain less 1",
        config={"vocab_size": 320, "hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1,
                "head_dim": 16, "intermediate_size": 64, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
                "rope_theta": 100000.0, "rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                "max_position_embeddings": 512, "query_pre_attn_scalar": 24, "sliding_window": 32, "sliding_window_pattern": 3,
                "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "pad_token_id": 0,
                "eos_token_id": 1, "bos_token_id": 2}),
    "gemma3-plain": dict(
        family="gemma3_text", seed=3500, prompt=150, stored="float16", style="new",
        notes="the ways of published 270M files: no scaling, query_pre_attn_scalar is head_dim, every sixth layer sees all",
        config={"vocab_size": 320, "hidden_size": 40, "num_hidden_layers": 7, "num_attention_heads": 2, "num_key_value_heads": 1,
                "head_dim": 16, "intermediate_size": 48, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
                "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None, "max_position_embeddings": 512,
                "query_pre_attn_scalar": 16, "sliding_window": 24, "attention_bias": False, "attn_logit_softcapping": None,
                "final_logit_softcapping": None, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}),
    "qwen2-window": dict(
        family="qwen2", seed=3600, prompt=150, stored="float16", style="old",
        notes="four layers; the last two (old form: max_window_layers, new form: layer_types) see 24 positions",
        config={**QWEN, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}),
    "gpt2-untied": dict(
        family="gpt2", seed=3700, prompt=150, stored="float16", style="old",
        notes="a head of its own and n_inner 100",
        config={"vocab_size": 320, "n_positions": 256, "n_embd": 48, "n_layer": 3, "n_head": 3, "n_inner": 100,
                "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 0, "eos_token_id": 0,
                "tie_word_embeddings": False}),
    "neox-partial": dict(
        family="gpt_neox", seed=3800, prompt=160, stored="float16", style="new",
        notes="8 of 20 dimensions rotate, one block after the other, exact gelu",
        config={"vocab_size": 320, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 100,
                "hidden_act": "gelu", "rotary_pct": 0.4, "rotary_emb_base": 10000, "max_position_embeddings": 256,
                "use_parallel_residual": False, "layer_norm_eps": 1e-05, "bos_token_id": 0, "eos_token_id": 0,
                "tie_word_embeddings": False}),
    "mistral-mixed": dict(
        family="mistral", seed=3900, prompt=160, stored="mixed", style="new",
        notes="no window; tied; F16, BF16 and F32 side by side; the header's length is odd, so that no tensor is aligned, and the "
              "data lie in another order than the names",
        config={**LLAMA, "head_dim": 16, "sliding_window": None, "tie_word_embeddings": True}),
}


def gain_of(name):
    """Of a matrix whose output has this standard deviation for an input of 1."""
    if any(s in name for s in ("q_proj", "k_proj", "c_attn", "query_key_value")):
        return SCORE_STD ** 0.5
    if any(s in name for s in ("o_proj", "attn.c_proj", "attention.dense")):
        return 3.0                                  # attention weighs much, so that the output depends on the whole prompt
    if "mlp.c_proj" in name or "4h_to_h" in name:
        return 2.0
    return 1.4


def norm_of(name, r, family, tied):
    if name.endswith("bias"):
        return 0.1 * r
    r = 1.0 + 0.2 * r
    if "q_norm" in name or "k_norm" in name:
        r *= SCORE_STD ** 0.5
    if tied and name.endswith(("ln_f.weight", "model.norm.weight")):
        r *= 5.0                                    # a tied embedding is small, so that the head does not just repeat its input
    return r - 1.0 if family == "gemma3_text" else r


def initialise(model, seed):
    gen = torch.Generator().manual_seed(seed)
    config = model.config
    family, hidden, tied = config.model_type, config.hidden_size, config.tie_word_embeddings
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=gen)
        fan_in = p.shape[0] if family == "gpt2" else p.shape[-1]
        if "norm" in name or ".ln_" in name:
            r = norm_of(name, r, family, tied)
        elif name.endswith("bias"):
            r *= 0.4 if "q_proj" in name or "k_proj" in name else 0.1
        elif any(s in name for s in ("embed_tokens", "embed_in", "wte", "wpe")):
            r *= 0.6 / hidden ** 0.5 if tied or "wpe" in name else 0.6
        elif "lm_head" in name or "embed_out" in name:
            r *= 3.0 / hidden ** 0.5
        else:
            if "mlp.c_proj" in name or "4h_to_h" in name:
                r -= r.mean(0 if family == "gpt2" else 1, keepdim=True)     # else the mean of gelu favours a few tokens
            r *= gain_of(name) / fan_in ** 0.5
        p.copy_(r)


def stored_type(stored, name, p):
    if stored != "mixed":
        return getattr(torch, stored)
    if p.dim() < 2:
        return torch.float32
    return torch.bfloat16 if sum(name.encode()) % 3 else torch.float16


def round_weights(model, stored):
    for name, p in model.named_parameters():
        p.copy_(p.to(stored_type(stored, name, p)).to(torch.float32))


def whole_pass(model, ids, length):
    """Logits of all of ids by one pass; length: at least so many positions, so that RoPE of type dynamic knows the context."""
    padded = ids + [0] * (length - len(ids))
    return model(torch.tensor([padded]), use_cache=False).logits[0, :len(ids)]


def greedy(model, prompt, length):
    """Greedy ids and the smallest top1-top2 gap; gives up below MARGIN."""
    ids, gap = list(prompt), float("inf")
    for _ in range(STEPS):
        last = whole_pass(model, ids, length)[-1]
        two = last.topk(2).values
        gap = min(gap, (two[0] - two[1]).item())
        if gap < MARGIN:
            break
        ids.append(int(last.argmax()))
    return ids[len(prompt):], gap


def stepwise(model, ids):
    """Logits one token at a time through the key/value cache, with the frequencies of the passes so far."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.rope_type = "default"            # keeps the base of the longest pass
    cache, rows = None, []
    for i in ids:
        out = model(torch.tensor([[i]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, 0])
    return torch.stack(rows)


def write_odd_safetensors(tensors, path):
    """Header of odd length, data in the order of the reversed names, no padding anywhere."""
    types = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    data, header = b"", {"__metadata__": {"format": "pt"}}
    for name in sorted(tensors, key=lambda n: n[::-1]):
        t = tensors[name].contiguous()
        raw = t.view(torch.uint8 if t.dim() else torch.int32).numpy().tobytes()
        header[name] = {"dtype": types[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(dict(sorted(header.items())), separators=(",", ":")).encode()
    text += b" " * (1 - len(text) % 2)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_json(path, obj):
    path.write_text(json.dumps(obj, indent=1) + "\n")


def write_expected(path, obj, rows):
    """One line a row of logits: a third of the size of one line a number."""
    text = json.dumps(obj)
    lines = ",\n".join(json.dumps([float(f"{x:.6g}") for x in row]) for row in rows)
    path.write_text(text[:-1] + ',\n"logits": [\n' + lines + "\n]}\n")


def save(model, spec, path):
    path.mkdir(parents=True, exist_ok=True)
    for f in path.iterdir():
        f.unlink()
    stored = spec["stored"]
    model.config.dtype = torch.float32 if stored == "mixed" else getattr(torch, stored)
    model.config.save_pretrained(path)
    new = json.loads((path / "config.json").read_text())
    new["architectures"] = [type(model).__name__]
    old = {"architectures": new["architectures"], "model_type": new["model_type"], **spec["config"],
           "torch_dtype": "float32" if stored == "mixed" else stored, "transformers_version": "4.40.0", "use_cache": True}
    first, second = (old, new) if spec["style"] == "old" else (new, old)
    write_json(path / "config.json", first)
    write_json(path / "config.alt.json", second)
    published = {"lm_head.weight": "embed_out.weight"} if spec["family"] == "gpt_neox" else {}  # their name in files
    tensors = {published.get(n, n): p.detach().to(stored_type(stored, n, p)) for n, p in model.named_parameters()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return tensors


def load(path, config=None):
    config = AutoConfig.from_pretrained(path / (config or "config.json"))
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def check_window(path, ids, logits, name):
    """The window has to matter: without it other logits come out where it hides something."""
    config = AutoConfig.from_pretrained(path)
    window = getattr(config, "sliding_window", None)
    if not window:
        return
    config.sliding_window = 4096
    other = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    d = (other(torch.tensor([ids]), use_cache=False).logits[0] - logits).abs().amax(1)
    assert d[:window].max() < 1e-4 < 0.1 < d[window + 1:].max(), name


def draw(name, spec, config):
    """The first seed whose model is decisive: (model, prompt, seed)."""
    special = {config.bos_token_id, config.eos_token_id}
    for seed in range(spec["seed"], spec["seed"] + 100):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        initialise(model, seed)
        round_weights(model, spec["stored"])
        gen = torch.Generator().manual_seed(seed + 500000)
        prompt = torch.randint(3, config.vocab_size, (spec["prompt"],), generator=gen).tolist()
        tokens, gap = greedy(model, prompt, spec["prompt"] + STEPS)
        if gap > MARGIN and len(set(tokens)) >= DISTINCT and not special & set(tokens):
            return model, prompt, seed
    sys.exit(f"{name}: no seed gives a margin over {MARGIN}")


def make(name, spec):
    torch.manual_seed(0)
    config = AutoConfig.for_model(spec["family"], **copy.deepcopy(spec["config"]))
    model, prompt, seed = draw(name, spec, config)
    path, n = OUT / name, len(prompt)
    tensors = save(model, spec, path)
    model = load(path)                              # what follows comes from the files
    tokens, gap = greedy(model, prompt, n + STEPS)
    ids = prompt + tokens
    logits = whole_pass(model, ids, n + STEPS)
    alt = load(path, "config.alt.json")
    assert torch.equal(whole_pass(alt, ids, n + STEPS), logits), name
    noise = (stepwise(model, ids) - logits).abs().max().item()
    assert gap > MARGIN and gap > 20 * noise, (name, gap, noise)
    check_window(path, ids, logits, name)
    if spec["stored"] == "mixed":
        write_odd_safetensors(tensors, path / "model.safetensors")
    at = sorted({0, 1, 2, 63, 64, 65, 128, n - 1, n, n + STEPS - 2})
    write_expected(path / "expected.json", {
        "name": name, "family": model.config.model_type, "hf_version": transformers.__version__,
        "torch_version": torch.__version__.split("+")[0], "stored": spec["stored"], "seed": seed, "notes": spec["notes"],
        "vocab_size": config.vocab_size, "prompt_length": n, "prompt": prompt, "greedy": tokens,
        "min_margin": float(f"{gap:.6g}"), "f32_noise": float(f"{noise:.3g}"), "logits_positions": at},
        [logits[p].tolist() for p in at])
    size = sum(f.stat().st_size for f in path.iterdir())
    print(f"{name}: seed {seed}, margin {gap:.4f}, noise {noise:.1e}, {len(set(tokens))} distinct of {STEPS}, {size >> 10} KiB")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        make(chosen, MODELS[chosen])
