"""Evaluate many on/off variants of one model in one pass: the prefix tree."""
