"""The papers' experiments on a data set in its public layout, with the published numbers beside one's own."""
