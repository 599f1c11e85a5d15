"""SWE-mini: small projects with real toolchains, and a scripted competent model that works on them through a chat."""
