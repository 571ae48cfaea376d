"""A random BERT of a few thousand weights that fills gaps, with a character tokenizer."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from grpo_core import MASK

SPECIAL = PAD, UNKNOWN, START = "[PAD]", "[UNK]", "[CLS]"


def masked_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character; a text begins with [CLS]."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, MASK, *string.printable))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocabulary[START])]
    )
    tokenizer.add_special_tokens([*SPECIAL, MASK])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START,
        mask_token=MASK,
    )


def masked_model(*, dtype: torch.dtype = torch.float64, seed: int = 0) -> BertForMaskedLM:
    """Random weights fixed by `seed`, in eval mode."""
    config = BertConfig(
        vocab_size=len(SPECIAL) + 1 + len(string.printable),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForMaskedLM(config).to(dtype).eval()


def save_masked(folder: Path, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    masked_model(dtype=dtype, seed=seed).save_pretrained(folder)
    masked_tokenizer().save_pretrained(folder)
    return folder
