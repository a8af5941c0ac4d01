"""Triton kernels over the paged pool, one file each.

They read and write the pool's own memory (`..kv_store`): per layer keys and values
[num_slots, kv_heads, dim], or integer codes of that shape with scales [num_slots, kv_heads, 1].
Tables hold block numbers, -1 = hole. What a query doesn't see is never loaded, or is replaced
before it meets anything, so that NaN in it doesn't matter.

With `TRITON_INTERPRET=1` in the environment before triton is imported they run on a CPU.
"""
