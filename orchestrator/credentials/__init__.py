"""Which credential a run gets: the documented order, one small object per place to look in."""

from orchestrator.credentials.byo_key import ByoKey, OwnKeys
from orchestrator.credentials.chain import CredentialChain
from orchestrator.credentials.technical_user import TechnicalUser

__all__ = ["ByoKey", "CredentialChain", "OwnKeys", "TechnicalUser"]
