"""What a run may use: resolved from the configuration, measured, and told when it is exceeded.

``resolve`` says what is allowed, ``watch`` decides when a run must end, ``words`` tells it.  The measures: ``memory``
(with ``shared_memory``; ``cgroup`` where the kernel keeps the limit), ``disk`` (with ``holdings``, what a container
holds, and ``insider``, which looks there from within its user namespace), ``space`` (what the machine has left).
"""
