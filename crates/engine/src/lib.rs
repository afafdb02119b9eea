//! The planner, the executor, the sampler, generation. No wire formats.
