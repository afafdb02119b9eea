//! Tests of the rules one by one, of rings at page edges, and of random scripts against an independent model.

mod fill;
mod model;
mod rig;
mod rings;
mod rules;
mod script;
