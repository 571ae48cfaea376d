"""A random Llama of a few thousand weights and a character tokenizer: real classes of transformers, small enough for every test."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, UNK, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, UNK, START, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(characters: str = string.printable) -> PreTrainedTokenizerFast:
    """One token per character, with the chat template, end token and padding token of a real chat model."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def tiny_model(
    *,
    dtype: torch.dtype = torch.float64,
    vocab: int = len(SPECIAL) + len(string.printable),
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Random weights fixed by `seed` (the global generator is left as it was), in eval mode, fit for `tiny_tokenizer`."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.3,  # the usual 0.02 gives an almost uniform policy, in which mistakes do not show
        bos_token_id=SPECIAL.index(START),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model = model.to(dtype).eval()
    if dtype == torch.float64:
        _norm_in_float64(model)
    return model


def save_tiny(folder: Path, *, dtype: torch.dtype = torch.float32, **more: int) -> Path:
    """A model folder as a user would pass it to `--model`: weights in safetensors, config, tokenizer, chat template."""
    tiny_model(dtype=dtype, **more).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _norm_in_float64(model: LlamaForCausalLM) -> None:
    """Llama's own norm goes through float32, which would hide differences below 1e-7 from tests that promise 1e-10."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = torch.nn.RMSNorm(
                module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64
            )
            norm.weight = module.weight
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, norm)
