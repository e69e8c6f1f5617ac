"""The service's side: starts the relay process, gives it the grants, takes its reports."""
