"""What the parts of podmentor promise each other: Protocols and plain records, no behaviour of their own.

``types``    records named by the adapter contract (imports nothing of ours)
``adapter``  what a backend must bring
``sandbox``  the container runtime
``gateway``  the way to the model provider
``runs``     runs and subagents, as the API and the command see them
"""
