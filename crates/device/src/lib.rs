//! `trait Device` and its backends, every kernel beside its backend. No model names, no files.
