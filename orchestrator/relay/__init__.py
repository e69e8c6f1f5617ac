"""The runs' ways out: the gateway to the model provider and the egress proxy of tier 1.

Both are carried by a relay process that outlives the service.

``gateway_policy``  what a request may do (pure)
``scrub``           takes a secret out of a stream (pure)
``protocol``        what service and relay say to each other (pure)
``sockets``         Unix sockets that appear whole or not at all
``upstream``        the connection to the provider
``gateway``         one run's reverse proxy
``policy``          where a run's connections may go (pure)
``heads``           what HTTP/1 heads have in common, ``wire`` those of clients, ``answers`` those of servers (pure)
``bodies``          where a body ends (pure)
``resolver``        from names to addresses
``dial``            from addresses to a connection
``visitor``         a client of the proxy before it is joined or refused
``tunnel``          two joined connections
``proxy``           one run's egress proxy
``tally``           few reports about many attempts (pure)
``outbox``          reports that no service has taken yet (pure)
``reporting``       the relay's side of the reports, ``inbox`` the service's
``relay``           the process that holds the gateways
``process``         starting that process, watching it, ending it
``client``          the service's side
"""
