"""Text to ids and back: vocabularies, chat templates, streaming detokenization. Imports no JAX."""

from vjax.tokenizing.chat_template import render_chat
from vjax.tokenizing.detokenizer import IncrementalDetokenizer
from vjax.tokenizing.load import load_tokenizer
from vjax.tokenizing.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer", "load_tokenizer", "render_chat"]
