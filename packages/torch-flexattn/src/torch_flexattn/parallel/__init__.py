"""Context parallelism: one long sequence cut over the ranks of a process group.

``shard_plan`` says which rank holds which queries and keys, ``shard`` cuts a tensor so, ``context_parallel_attention``
attends to the keys of all ranks, and ``unshard`` puts shards together again.
"""

from .attention import context_parallel_attention
from .plan import ShardPlan, shard_plan
from .shards import gather_shards, shard, unshard

__all__ = ["ShardPlan", "context_parallel_attention", "gather_shards", "shard", "shard_plan", "unshard"]
