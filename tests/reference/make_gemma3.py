#!/usr/bin/env python3
"""What Gemma 3 270M (Q4_K_M) gives when its weights are expanded to float32 and run by transformers, and the ids of its tokenizer.

usage: make_gemma3.py data/gemma-3-270m.Q4_K_M.gguf      Python packages: torch 2.9.1, transformers 5.24.0, gguf 0.19.0,
                                                        sentencepiece 0.2.3, protobuf

Writes tests/reference/data/gguf/gemma3.json (format: ../shared/reference/README.md, gguf/; `prompt` begins with BOS, as generate
puts it there, and `margins` lists the distance of the best two logits of each of the 32 steps) and
tests/reference/data/tokenizer/gemma3.jsonl. The tokenizer is sentencepiece's own, with a model made of the tokens, scores and
types of the file: ids_plain are its ids, and ids those of the pieces between the markups of control tokens.
"""
import json, pathlib, re, sys
import gguf, numpy as np, torch, transformers
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

HERE = pathlib.Path(__file__).parent
SHARED = HERE.parent.parent.parent / "shared" / "reference"
STEPS, TOP = 32, 16
CONTROL = 3
torch.set_num_threads(1)
torch.set_grad_enabled(False)
transformers.logging.set_verbosity_error()

PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def prompts():
    lines = (SHARED / "corpus.visible.txt").read_text().splitlines()
    long = " ".join(line.strip() for line in lines if line.strip())[:3400]
    return ["The lighthouse keeper wrote three words in his log every evening: wind, sea and lamp. On the ninth of March he wrote",
            "Largest cities of Europe by population:\n1. Istanbul\n2. Moscow\n3.", long]


def value(reader, key):
    return reader.fields[key].contents()


def transformers_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    layer, part = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name).groups()
    return f"model.layers.{layer}.{PARTS[part]}.weight"


def load_model(reader):
    key = lambda name: value(reader, "gemma3." + name)
    config = Gemma3TextConfig(
        vocab_size=len(value(reader, "tokenizer.ggml.tokens")), hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"), query_pre_attn_scalar=key("attention.key_length"),
        max_position_embeddings=key("context_length"), rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        sliding_window=key("attention.sliding_window"), rope_theta=key("rope.freq_base"), rope_local_base_freq=10000.0,
        attn_implementation="eager")
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    weights = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.name.endswith("norm.weight"):
            w = w - np.float32(1)                   # transformers adds 1 again
        weights[transformers_name(t.name)] = torch.from_numpy(np.ascontiguousarray(w))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = Gemma3ForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)
    model.set_attn_implementation("eager")
    for name, p in model.named_parameters():
        assert torch.equal(p, weights[name]), name
    return model.eval()


def load_tokenizer(reader):
    """sentencepiece with the file's vocabulary. Returns (encode plain text, {markup of a control token: id}, bos)."""
    tokens, scores, types = (value(reader, "tokenizer.ggml." + k) for k in ("tokens", "scores", "token_type"))
    proto = pb.ModelProto()
    proto.trainer_spec.model_type = pb.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = bool(value(reader, "tokenizer.ggml.add_space_prefix"))
    proto.normalizer_spec.remove_extra_whitespaces = False
    for piece, score, kind in zip(tokens, scores, types):
        escaped = piece.replace(" ", "\u2581") if kind == 4 else piece      # runs of spaces, as sentencepiece's own file has them
        proto.pieces.add(piece=escaped, score=score, type=kind)
    unknown = [i for i, kind in enumerate(types) if kind == 2]
    if not unknown:                                 # sentencepiece wants one; the file has it as a control token
        proto.pieces[value(reader, "tokenizer.ggml.unknown_token_id")].type = 2
    processor = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
    control = {t: i for i, (t, kind) in enumerate(zip(tokens, types)) if kind == CONTROL}
    return processor, control, value(reader, "tokenizer.ggml.bos_token_id")


def ids_with_control(processor, control, text):
    ids, pattern = [], "|".join(re.escape(t) for t in sorted(control, key=len, reverse=True))
    for piece in re.split(f"({pattern})", text):
        ids += [control[piece]] if piece in control else processor.encode(piece)
    return ids


def row(logits, position):
    top = logits.topk(TOP)
    return {"position": position, "top": [[int(i), float(f"{v:.7g}")] for v, i in zip(*top)],
            "mean": float(f"{logits.mean():.7g}"), "logsumexp": float(f"{logits.logsumexp(0):.8g}")}


def run(model, processor, bos, text):
    prompt = [bos] + processor.encode(text)
    n = len(prompt)
    out = model(torch.tensor([prompt]), use_cache=True)
    rows = {p: out.logits[0, p].clone() for p in (0, 1, n // 2, n - 1)}
    last, ids, margins = out.logits[0, -1], [], []
    for step in range(STEPS):
        two = last.topk(2).values
        margins.append(float(f"{two[0] - two[1]:.4g}"))
        ids.append(int(last.argmax()))
        if step < STEPS - 1:
            out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            last = out.logits[0, -1]
    rows[n + STEPS - 2] = last
    whole = model(torch.tensor([prompt + ids]), use_cache=False).logits[0]
    noise = max((whole[p] - r).abs().max().item() for p, r in rows.items())
    assert whole[n - 1:-1].argmax(1).tolist() == ids and min(margins) > 20 * noise, (min(margins), noise)
    print(f"{n} + {STEPS} tokens, margin {min(margins):.4f}, noise {noise:.1e}: {processor.decode(ids)!r}")
    return {"model": "gemma3", "text": text, "prompt": prompt, "greedy": ids, "min_margin": min(margins),
            "f32_noise": float(f"{noise:.3g}"), "margins": margins, "logits": [row(r, p) for p, r in rows.items()]}


def write_lines(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    processor, control, bos = load_tokenizer(reader)
    texts = json.loads((SHARED / "texts.visible.json").read_text())
    texts += ["<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<bos>a<eos>", "   three spaces", "\n\n\n\t\t tabs",
              "<b>bold</b> <unused12>[multimodal]", " leading", "trailing "]
    lines = [json.dumps({"text": t, "ids": ids_with_control(processor, control, t), "ids_plain": processor.encode(t)})
             for t in texts]
    write_lines(HERE / "data" / "tokenizer" / "gemma3.jsonl", "\n".join(lines) + "\n")
    model = load_model(reader)
    runs = [json.dumps(run(model, processor, bos, text)) for text in prompts()]
    write_lines(HERE / "data" / "gguf" / "gemma3.json", "[\n" + ",\n".join(runs) + "\n]\n")


if __name__ == "__main__":
    main()
