"""Which credential a run gets: the documented order, one small object per place to look in."""

from orchestrator.credentials.byo_key import ByoKey, OwnKeys
from orchestrator.credentials.byo_subscription import Subscription, probe_with_home
from orchestrator.credentials.chain import CredentialChain, TechnicalUser
from orchestrator.credentials.homes import Homes

__all__ = ["ByoKey", "CredentialChain", "Homes", "OwnKeys", "Subscription", "TechnicalUser", "probe_with_home"]
