"""The canary's vocabulary as a transformers tokenizer, for `AutoTokenizer.from_pretrained`."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .vocabulary import CONTINUATION, EOS, PAD, UNK, pieces
from .wordpiece import VOCABULARY_FILE, WHITE_SPACE

# transformers calls a longer word unknown; ours has no such limit.
_LONGEST_WORD = 1_000_000


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that `WordPiece` mirrors; adds no special tokens to a text."""
    vocabulary = {piece: token for token, piece in enumerate(pieces())}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=UNK,
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"[{WHITE_SPACE}]+"), "removed"),
            pre_tokenizers.Split(Regex("[^a-z0-9]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path) -> None:
    """Write `vocab.txt` and the transformers files into `folder`, which must exist."""
    vocabulary = "".join(piece + "\n" for piece in pieces())
    (folder / VOCABULARY_FILE).write_text(vocabulary, encoding="utf-8")
    build_tokenizer().save_pretrained(folder)
