"""The ``torch.distributed`` backend ``topoccl``; ``docs/torch.md`` tells how it is used. ``import topoccl`` has registered it."""
