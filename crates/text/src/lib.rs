//! Tokenizers, the incremental detokenizer, chat templates, stop matching. No models, no HTTP.
