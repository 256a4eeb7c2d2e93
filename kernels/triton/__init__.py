"""The ops as Triton kernels, one file each; imported only where they run.

Each file names its algorithm's source, has the kernel with the shape of what each pointer points
to, and one wrapper that checks shapes and launches. They know tensors, no model and no request.
Invariant: `kernels.reference` is what each one means; offsets into caches are 64 bits wide.
"""
