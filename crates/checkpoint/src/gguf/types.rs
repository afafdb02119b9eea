//! ggml's numeric type ids.

use crate::{Block, DType, Opaque};

/// What a type id in a GGUF file means.
pub(super) enum TypeId {
    Known(DType),
    /// Once used, taken out of the format since.
    Removed(&'static str),
    Unknown,
}

const TABLE: &[(u32, DType)] = &[
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::Block(Block::Q4_0)),
    (3, DType::Block(Block::Q4_1)),
    (6, DType::Block(Block::Q5_0)),
    (7, DType::Block(Block::Q5_1)),
    (8, DType::Block(Block::Q8_0)),
    (9, DType::Opaque(Opaque::Q8_1)),
    (10, DType::Block(Block::Q2K)),
    (11, DType::Block(Block::Q3K)),
    (12, DType::Block(Block::Q4K)),
    (13, DType::Block(Block::Q5K)),
    (14, DType::Block(Block::Q6K)),
    (15, DType::Opaque(Opaque::Q8K)),
    (16, DType::Opaque(Opaque::Iq2Xxs)),
    (17, DType::Opaque(Opaque::Iq2Xs)),
    (18, DType::Opaque(Opaque::Iq3Xxs)),
    (19, DType::Opaque(Opaque::Iq1S)),
    (20, DType::Block(Block::Iq4Nl)),
    (21, DType::Block(Block::Iq3S)),
    (22, DType::Opaque(Opaque::Iq2S)),
    (23, DType::Block(Block::Iq4Xs)),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (29, DType::Opaque(Opaque::Iq1M)),
    (30, DType::BF16),
    (34, DType::Opaque(Opaque::Tq1_0)),
    (35, DType::Opaque(Opaque::Tq2_0)),
    (39, DType::Block(Block::Mxfp4)),
    (40, DType::Block(Block::Nvfp4)),
    (41, DType::Opaque(Opaque::Q1_0)),
];

const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

pub(super) fn of_id(id: u32) -> TypeId {
    if let Some((_, d)) = TABLE.iter().find(|(i, _)| *i == id) {
        return TypeId::Known(*d);
    }
    REMOVED.iter().find(|(i, _)| *i == id).map_or(TypeId::Unknown, |(_, n)| TypeId::Removed(n))
}

/// The id of a type, if GGUF has one for it.
pub(super) fn id_of(d: DType) -> Option<u32> {
    TABLE.iter().find(|(_, t)| *t == d).map(|(i, _)| *i)
}
