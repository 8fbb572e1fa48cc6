"""Texts and pairs cut to a number of tokens, special ones included."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from vjax.tokenizing import Tokenizer


def bert_like() -> Tokenizer:
    pieces = ["[UNK]", "[CLS]", "[SEP]", *(chr(code) for code in range(ord("a"), ord("z") + 1))]
    backend = Backend(models.WordLevel({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return Tokenizer(backend)


def test_one_text() -> None:
    tokenizer = bert_like()
    whole = tokenizer.encode("a b c d")
    assert tokenizer.encode_within("a b c d") == (whole, None)
    assert tokenizer.encode_within("a b c d", most=6) == (whole, None)
    assert tokenizer.encode_within("a b c d", most=5) == (tokenizer.encode("a b c"), None)
    assert tokenizer.encode_within("a b c d", most=5, left=True) == (tokenizer.encode("b c d"), None)
    assert tokenizer.encode_within("a b c d", most=2, add_special_tokens=False) == ([3, 4], None)
    assert tokenizer.encode_within("", most=5) == (tokenizer.encode(""), None)


def test_pairs() -> None:
    tokenizer = bert_like()
    plain = tokenizer.backend.encode("a b", "c d e")
    ids, second = tokenizer.encode_within("a b", "c d e")
    assert ids == plain.ids
    assert second == plain.type_ids.index(1) == 4

    def pair(first: str, second: str) -> list[int]:
        found: list[int] = tokenizer.backend.encode(first, second).ids
        return found

    assert tokenizer.encode_within("a b", "c d e f g h", most=9)[0] == pair("a b", "c d e f")
    assert tokenizer.encode_within("c d e f g h", "a b", most=9) == (pair("c d e f", "a b"), 6)
    assert tokenizer.encode_within("a b c d e", "f g h i j", most=8)[0] == pair("a b", "f g h")
    assert tokenizer.encode_within("a b c", "f g h", most_text=1, most_pair=2)[0] == pair("a", "f g")
    assert tokenizer.encode_within("a b c", "f g h", most=8, left=True, most_pair=2)[0] == pair("a b c", "g h")
