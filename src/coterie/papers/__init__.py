"""The papers: their experiments as data, their theorems beside runs, the sizes of their models, their figures."""
