"""The runs' way out: the gateway to the model provider, carried by a relay process that outlives the service.

``gateway_policy``  what a request may do (pure)
``scrub``           takes a secret out of a stream (pure)
``protocol``        what service and relay say to each other (pure)
``sockets``         Unix sockets that appear whole or not at all
``upstream``        the connection to the provider
``gateway``         one run's reverse proxy
``relay``           the process that holds the gateways
``process``         starting that process, watching it, ending it
``client``          the service's side
"""
