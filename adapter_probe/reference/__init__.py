"""Numbers published in Houlsby et al. 2019 (arXiv 1902.00751)."""
