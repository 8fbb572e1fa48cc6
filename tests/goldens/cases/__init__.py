"""The models whose outputs the goldens pin: a module for each group of families.

To add a family:

1. Write its cases in a module here, and add them to `CASES`: a `Case` is a name and the `config.json` of a tiny model,
   as its checkpoints spell it. Cover tied and untied heads, every rope variant and every option that the family's
   published models use; prefer odd sizes. Name in `switches` each option that must matter: the generator refuses a
   case whose logits do not move without it.
2. `pip install torch==2.13.0 transformers==5.24.0` (the `oracle` extra), then
   `python -m tests.goldens.generate NAME ...` writes `tests/goldens/data/NAME.npz` (under 30 KB each). Commit it.
3. If llama.cpp has the family, say in `gguf_*.py` what it calls it and what its converter changes; else `gguf=False`.

Every test parametrised over `case_names()` then covers the new cases. Nothing but the generator needs transformers.
Token ids 0 to 2 are special (unknown, bos, eos): prompts do not contain them and greedy paths never reach the eos.
"""

from tests.goldens.cases.case import Case
from tests.goldens.cases.encoders import ENCODERS
from tests.goldens.cases.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA4
from tests.goldens.cases.layernorm import LAYERNORM
from tests.goldens.cases.llama import LLAMA
from tests.goldens.cases.mla import MLA
from tests.goldens.cases.moe import MOE
from tests.goldens.cases.phi import PHI3
from tests.goldens.cases.qwen import QWEN2, QWEN3
from tests.goldens.cases.recurrent import RECURRENT
from tests.goldens.cases.relatives import RELATIVES

__all__ = ["CASES", "ENCODERS", "Case"]

CASES = LLAMA + QWEN2 + QWEN3 + GEMMA + GEMMA2 + GEMMA3 + GEMMA4
CASES += PHI3 + LAYERNORM
CASES += MLA
CASES += RECURRENT
CASES += MOE
CASES += RELATIVES
