"""Shopping by instruction in a text web shop (WebShop, Yao et al. 2022, arXiv 2207.01206)."""
