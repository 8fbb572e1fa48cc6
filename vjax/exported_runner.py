"""Generates text from a folder written by `vjax export`; vjax is not needed, see the imports (tokenizers for text).
Try: python run.py "Once upon a time" --max-tokens 32. manifest.json states every input and output of the graphs."""

import argparse
import json
import math
import pathlib

import jax
import jax.export
import numpy as np
from safetensors.numpy import load_file


class Runner:
    def __init__(self, folder):
        self.folder, self.graphs = pathlib.Path(folder), {}
        self.manifest = m = json.loads(self.file("manifest.json").read_text())
        self.platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
        if self.platform not in m["platforms"]:
            raise SystemExit(f"exported for {', '.join(m['platforms'])}, but JAX runs on {self.platform} here")
        if version(jax.__version__) < version(m["jax_version"]):
            raise SystemExit(f"exported with JAX {m['jax_version']}, newer than the {jax.__version__} installed here")
        stored = load_file(self.file("weights.safetensors"))
        missing = [w["name"] for w in m["weights"] if w["name"] not in stored]
        if missing:
            raise SystemExit(f"{self.folder / 'weights.safetensors'} lacks {missing[0]} (one of {len(missing)})")
        self.weights = [jax.device_put(stored[w["name"]].view(jax.numpy.dtype(w["dtype"]))) for w in m["weights"]]

    def file(self, name):
        if not (self.folder / name).is_file():
            raise SystemExit(f"{self.folder / name} is missing: the export is incomplete")
        return self.folder / name

    def graph(self, spec):
        """The compiled step. `Exported.call` forgets that the state is donated, so that is said again."""
        if spec["name"] not in self.graphs:
            exported = jax.export.deserialize(bytearray(self.file(spec["files"][self.platform]).read_bytes()))
            self.graphs[spec["name"]] = jax.jit(exported.call, donate_argnums=1)
        return self.graphs[spec["name"]]

    def step(self, state, spec, rows, sampling):
        """Run one graph on `rows`: (slot, start position, token ids). Returns the state and a token for each row."""
        m, buffer = self.manifest, np.full(spec["buffer_size"], -1, np.int32)
        field = {
            name: buffer[at : at + math.prod(shape)].reshape(shape) for name, (at, shape) in spec["fields"].items()
        }
        for line, name in zip(field["params"], m["row_params"], strict=True):
            value = {"top_p": 1.0, "repetition_penalty": 1.0, **sampling}.get(name, 0)
            line[:] = np.float32(value).view(np.int32) if name in m["float_params"] else value
        field["slot"][:], field["kv_len"][:] = m["slots"], 0
        updates, at, groups, size = [], 0, m["page_groups"], m["page_size"]
        for r, (slot, start, ids) in enumerate(rows):
            end = start + len(ids)
            field["slot"][r], field["kv_len"][r], field["store"][r] = slot, end, end
            first = 1 + slot * -(-m["max_len"] // size) * groups  # of a slot's pages; page 0 is a dummy
            pages = range(start // size * groups, ((end - 1) // size + 1) * groups)
            updates += [(slot, i, first + i) for i in pages]
            if spec["kind"] == "prefill":
                span, field["query_start"][r] = slice(at, at + len(ids)), at
                field["ids"][span], field["position"][span], field["row"][span] = ids, range(start, end), r
                at += len(ids)
        if spec["kind"] == "prefill":
            field["query_start"][len(rows) :], field["row"][at:] = at, 0
        field["pages"][:, : len(updates)] = np.array(updates).T
        state, result = self.graph(spec)(self.weights, state, buffer)
        return state, np.asarray(result)[: len(rows), 0].tolist()

    def generate(self, prompts, max_tokens=32, **sampling):
        """Continue lists of token ids; returns lists of new ids, each up to an end-of-sequence token. `sampling` may
        hold any of the manifest's row_params, such as temperature=0.8 and seed_low=1; greedy by default."""
        m = self.manifest
        if not 1 <= len(prompts) <= m["slots"] or any(not 1 <= len(p) < m["max_len"] for p in prompts):
            raise SystemExit(f"takes 1 to {m['slots']} prompts of 1 to {m['max_len'] - 1} tokens")
        state = [jax.numpy.zeros(s["shape"], s["dtype"]) for s in m["state"]]
        prefill, decode = ([g for g in m["graphs"] if g["kind"] == kind] for kind in ("prefill", "decode"))
        output = []
        for slot, ids in enumerate(prompts):
            for start in range(0, len(ids), prefill[-1]["tokens"]):
                chunk = ids[start : start + prefill[-1]["tokens"]]
                spec = next(g for g in prefill if g["tokens"] >= len(chunk))
                state, token = self.step(state, spec, [(slot, start, chunk)], sampling)
            output.append(token)
        while True:
            live = [i for i, new in enumerate(output) if len(new) < max_tokens and new[-1] not in m["eos_token_ids"]]
            rows = [(i, len(prompts[i]) + len(output[i]) - 1, output[i][-1:]) for i in live]
            rows = [row for row in rows if row[1] + 1 < m["max_len"]]
            if not rows:
                return output
            spec = next(g for g in decode if g["rows"] >= len(rows))
            state, tokens = self.step(state, spec, rows, sampling)
            for (i, _, _), token in zip(rows, tokens, strict=True):
                output[i].append(token)


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def main():
    parser = argparse.ArgumentParser(description="Generate text from an exported model, greedily.")
    parser.add_argument("prompt", nargs="+", help="text; with --ids, token ids such as 1,2,3")
    parser.add_argument("--ids", action="store_true", help="prompts are token ids, and so is the output")
    parser.add_argument("--max-tokens", type=int, default=32)
    args = parser.parse_args()
    runner = Runner(pathlib.Path(__file__).parent)
    if args.ids:
        encode, decode = (lambda text: [int(t) for t in text.split(",")]), (lambda ids: ",".join(map(str, ids)))
    else:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(runner.file("tokenizer.json")))
        encode, decode = (lambda text: tokenizer.encode(text).ids), tokenizer.decode
    for new in runner.generate([encode(p) for p in args.prompt], args.max_tokens):
        print(decode(new))


if __name__ == "__main__":
    main()
