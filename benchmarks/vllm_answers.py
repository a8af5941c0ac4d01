"""Answers prompts with vLLM, for `serving.py --vllm PYTHON`; runs in vLLM's own environment.

Reads a JSON line {"prompts": [[token, ...], ...], "new_tokens": N} at a time, and writes
{"answers": [[token, ...], ...], "seconds": s, "processor": s}: by the wall, and of the processor.
Its first argument is the model's directory, its second `cache` or `no-cache`, of prefixes.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that its processor time is this process's
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints is no reply

    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports] -- not ours

    llm = LLM(
        sys.argv[1],
        dtype="float32",
        block_size=32,
        enforce_eager=True,
        enable_prefix_caching=sys.argv[2] == "cache",
        max_model_len=512,
    )
    for line in sys.stdin:
        asked = json.loads(line)
        greedy = SamplingParams(temperature=0, max_tokens=asked["new_tokens"], ignore_eos=True)
        llm.reset_prefix_cache()
        started, used = time.perf_counter(), time.process_time()
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in asked["prompts"]], greedy, use_tqdm=False
        )
        reply = {
            "answers": [list(output.outputs[0].token_ids) for output in outputs],
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - used,
        }
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
