"""A blinded survey that asks people whether two pictures, one of them changed, show one person (Fantômas, appendix D).
"""
