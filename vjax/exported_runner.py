"""Generates text from a folder written by `vjax export`. Needs jax, numpy and safetensors (tokenizers for text), not vjax.

    python run.py "Once upon a time" "Another prompt" --max-tokens 32 --temperature 0

manifest.json beside this file states every input and output of the graphs.
"""

import argparse
import json
import pathlib
import sys

import jax
import jax.export
import numpy as np
from safetensors.numpy import load_file


class Runner:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.manifest = m = json.loads(self._file("manifest.json").read_text())
        self.platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
        if self.platform not in m["platforms"]:
            raise SystemExit(f"this export holds graphs for {', '.join(m['platforms'])}; JAX runs on {self.platform} here")
        if version(jax.__version__) < version(m["jax_version"]):
            raise SystemExit(f"exported with JAX {m['jax_version']}, newer than the {jax.__version__} installed here")
        stored = load_file(self._file("weights.safetensors"))
        missing = [w["name"] for w in m["weights"] if w["name"] not in stored]
        if missing:
            raise SystemExit(f"weights.safetensors lacks {missing[0]} and {len(missing) - 1} more of the manifest's weights")
        self.weights = [jax.device_put(stored[w["name"]].view(jax.numpy.dtype(w["dtype"]))) for w in m["weights"]]
        self.graphs = {}
        # Row r of the batch owns the pages 1 + r * width onwards; page 0 is a dummy.
        self.width = -(-m["max_len"] // m["page_size"])

    def _file(self, name):
        path = self.folder / name
        if not path.is_file():
            raise SystemExit(f"{path} is missing: the export is incomplete")
        return path

    def graph(self, spec):
        """The compiled step; `Exported.call` forgets which argument is donated, so say it again."""
        if spec["name"] not in self.graphs:
            exported = jax.export.deserialize(bytearray(self._file(spec["files"][self.platform]).read_bytes()))
            self.graphs[spec["name"]] = jax.jit(exported.call, donate_argnums=1)
        return self.graphs[spec["name"]]

    def step(self, state, spec, rows, first=False, temperature=0.0, seed=0):
        """Run one graph on `rows`: (slot, start position, token ids). Returns the state and a token for each row."""
        buffer = np.full(spec["buffer_size"], -1, np.int32)
        field = {n: buffer[o : o + int(np.prod(s))].reshape(s) for n, (o, s) in spec["fields"].items()}
        floats = dict(top_p=1.0, repetition_penalty=1.0, temperature=temperature)
        for i, name in enumerate(self.manifest["row_params"]):
            value = floats.get(name, 0.0)
            field["params"][i] = np.float32(value).view(np.int32) if name in self.manifest["float_params"] else 0
        field["params"][self.manifest["row_params"].index("seed_low")] = seed
        field["slot"][:], field["kv_len"][:] = self.manifest["slots"], 0
        updates, at = [], 0
        for r, (slot, start, ids) in enumerate(rows):
            end = start + len(ids)
            field["slot"][r], field["kv_len"][r], field["store"][r] = slot, end, end
            pages = range(start // self.manifest["page_size"], (end - 1) // self.manifest["page_size"] + 1)
            updates += [(slot, i, 1 + slot * self.width + i) for i in pages]
            if spec["kind"] == "prefill":
                span = slice(at, at + len(ids))
                field["ids"][span], field["position"][span], field["row"][span] = ids, range(start, end), r
                field["query_start"][r] = at
                at += len(ids)
        if spec["kind"] == "prefill":
            field["query_start"][len(rows) :] = at
            field["row"][at:] = 0
        field["pages"][:, : len(updates)] = np.array(updates).T
        state, result = self.graph(spec)(self.weights, state, buffer)
        return state, np.asarray(result)[: len(rows), 0].tolist()

    def generate(self, prompts, max_tokens=32, temperature=0.0, seed=0, eos=None):
        """Continue lists of token ids; returns lists of new token ids, each ending at an end-of-sequence token."""
        m, eos = self.manifest, set(self.manifest["eos_token_ids"] if eos is None else eos)
        if not 1 <= len(prompts) <= m["slots"]:
            raise SystemExit(f"this export takes 1 to {m['slots']} prompts at once, got {len(prompts)}")
        if any(not 1 <= len(p) < m["max_len"] for p in prompts):
            raise SystemExit(f"prompts must hold 1 to {m['max_len'] - 1} tokens")
        state = [jax.numpy.zeros(s["shape"], s["dtype"]) for s in m["state"]]
        prefill = sorted((g for g in m["graphs"] if g["kind"] == "prefill"), key=lambda g: g["tokens"])
        decode = sorted((g for g in m["graphs"] if g["kind"] == "decode"), key=lambda g: g["rows"])
        output = []
        for slot, ids in enumerate(prompts):
            for start in range(0, len(ids), prefill[-1]["tokens"]):
                chunk = ids[start : start + prefill[-1]["tokens"]]
                spec = next(g for g in prefill if g["tokens"] >= len(chunk))
                state, token = self.step(state, spec, [(slot, start, chunk)], temperature=temperature, seed=seed)
            output.append(token)
        while True:
            live = [i for i, new in enumerate(output) if len(new) < max_tokens and new[-1] not in eos]
            live = [i for i in live if len(prompts[i]) + len(output[i]) < m["max_len"]]
            if not live:
                return output
            rows = [(i, len(prompts[i]) + len(output[i]) - 1, output[i][-1:]) for i in live]
            spec = next(g for g in decode if g["rows"] >= len(rows))
            state, tokens = self.step(state, spec, rows, temperature=temperature, seed=seed)
            for i, token in zip(live, tokens):
                output[i].append(token)


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def main():
    parser = argparse.ArgumentParser(description="Generate text from an exported model.")
    parser.add_argument("prompt", nargs="+", help="prompts; with --ids, token ids separated by commas")
    parser.add_argument("--ids", action="store_true", help="prompts are token ids, and so is the output")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    runner = Runner(pathlib.Path(__file__).parent)
    tokenizer = None
    if not args.ids:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(runner._file("tokenizer.json")))
    prompts = [tokenizer.encode(p).ids if tokenizer else [int(t) for t in p.split(",")] for p in args.prompt]
    for new in runner.generate(prompts, args.max_tokens, args.temperature, args.seed):
        print(tokenizer.decode(new) if tokenizer else ",".join(map(str, new)))


if __name__ == "__main__":
    sys.exit(main())
