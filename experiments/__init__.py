"""Published studies, repeated: one package for each paper, one program for each figure."""
