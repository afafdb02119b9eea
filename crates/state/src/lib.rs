//! What a sequence owns: KV pages, rings, recurrent states. No scheduling.
