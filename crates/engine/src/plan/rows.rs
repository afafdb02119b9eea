//! Whether the embedding stays in its file. A step needs a row of it for each token, so where memory is short its bytes
//! serve better as slots of experts, or as layers that need not be read: what every step reads.

use super::{Ask, Subject, allowance, step_rows};
use memory::{Component, Plan, Residency};
use weights::{Bound, Role, Window};

/// The embedding of a model whose head is another matrix. One that is the head as well is read whole for every token.
fn untied(bounds: &[Bound]) -> Option<&Bound> {
    let of = |c| bounds.iter().find(|b| b.component == c && b.role == Role::Matrix);
    of(Component::Head).and(of(Component::Embed))
}

/// The embedding, where a plan leaves it in its file.
pub fn embed_by_rows<'a>(bounds: &'a [Bound], p: &Plan) -> Option<&'a Bound> {
    let stays = p.weights.iter().any(|w| w.component == Component::Embed && w.residency == Residency::RowRead);
    untied(bounds).filter(|_| stays)
}

/// Bytes of memory for rows of an embedding that stays in its file.
pub(super) fn window_bytes(bounds: &[Bound], p: &Plan) -> u64 {
    embed_by_rows(bounds, p).and_then(|b| Window::bytes(b, step_rows(p))).unwrap_or(0)
}

/// The same plan with the embedding in its file, where it does not fit and that helps, or where it was asked for.
pub(super) fn by_rows(of: Subject, ask: &Ask, p: Plan) -> Plan {
    let wanted = of.streams && (ask.stream.away || !p.fits());
    let stays = embed_by_rows(of.bounds, &p).is_some();
    let Some(bytes) = untied(of.bounds).filter(|_| wanted && !stays).and_then(|b| Window::bytes(b, step_rows(&p)))
    else {
        return p;
    };
    let mut rows = Plan { row_bytes: p.row_bytes.saturating_add(bytes), ..p.clone() };
    for w in rows.weights.iter_mut().filter(|w| w.component == Component::Embed) {
        w.residency = Residency::RowRead;
    }
    rows.allowance = allowance(of, ask, &rows);
    if ask.stream.away || rows.total_bytes() < p.total_bytes() { rows } else { p }
}
