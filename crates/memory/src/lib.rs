//! Ledger, reservations, the page pool, KV formats and the `Plan` value: pure data structures. No devices, no I/O, no clocks (time is an argument).
