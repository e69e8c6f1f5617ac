"""The HTTP API.

``app``         the application        ``server``      its sockets
``routing``     the route table        ``routes``      the handlers, one resource a file
``tokens``      who may call           ``identity``    for whom
``schemas``     what requests say      ``responses``   what answers say (``views`` makes them)
``streams``     events to a client     ``openapi``     the document of it all
"""
