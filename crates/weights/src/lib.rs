//! Where each parameter is and how it gets where it must be. No sequences.
