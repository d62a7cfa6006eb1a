"""The paper's benchmarks: their files to conversations with gold, methods to compare, figures and tables."""
