"""The operators: ``torch.ops.torch_flexattn``."""
