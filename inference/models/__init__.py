"""One file per architecture. `load` builds a model from a folder or a GGUF file."""
