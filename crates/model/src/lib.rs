//! Architectures: config to weight names to the halves of one layer, written once over `Device`. No loop order, no batching, no I/O.
